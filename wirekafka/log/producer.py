"""The state of one producer in a partition: its epoch, its last batches and its open transaction, with the checks of new batches.

Rules of this file: pure. `check` functions change nothing. Sequence numbers wrap from 2^31 - 1 to 0.

Source: KIP-98, KIP-360, KIP-890; org.apache.kafka.storage.internals.log.{ProducerStateEntry, ProducerAppendInfo,
VerificationStateEntry}.
"""

from __future__ import annotations

from typing import NamedTuple

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP
from wirekafka.wire.batch import MOST_SEQUENCE, TRANSACTIONAL_MASK, BatchHeader
from wirekafka.wire.control import EndMarker

BATCHES_KEPT = 5
MOST_EPOCH = 0x7FFF
_NO_COORDINATOR_EPOCH = -1
_FIRST_VERSION_WITH_EPOCH_FOR_EACH_TRANSACTION = 2
"""The version of the feature `transaction.version`."""


class BatchMemory(NamedTuple):
    """The remembered fields of one batch of a producer."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """The sequence number of its first record."""
        return (self.last_sequence - self.offset_delta) & MOST_SEQUENCE

    @property
    def first_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta


class VerificationState(NamedTuple):
    """The constraints on the first batch of a transaction, from the verification by the coordinator until the batch is written.

    Without these constraints, a producer that is unknown here could begin with a batch out of order, while the earlier batches
    were rejected and are sent again.

    Attributes:
        epoch: the producer's epoch.
        lowest_sequence: the lowest base sequence that the producer has tried with this epoch.
        must_be_zero: a producer that is unknown here begins with sequence number 0 (transactions v2).
        since_ms: the time of the first try.
    """

    epoch: int
    lowest_sequence: int
    must_be_zero: bool
    since_ms: int

    def tried(self, epoch: int, sequence: int) -> VerificationState:
        """Returns the constraints after another try.

        Source: VerificationStateEntry.maybeUpdateLowestSequenceAndEpoch.
        """
        if epoch > self.epoch:
            return self._replace(epoch=epoch, lowest_sequence=sequence)
        if epoch == self.epoch and sequence < self.lowest_sequence:
            return self._replace(lowest_sequence=sequence)
        return self


class Producer:
    """One producer.

    Attributes:
        epoch: its epoch, `NO_PRODUCER_EPOCH` before its first write.
        batches: its last batches with this epoch, the oldest first; at most `BATCHES_KEPT`.
        last_timestamp: the greatest timestamp of its last batch, which decides when the producer expires.
        coordinator_epoch: the epoch of the coordinator that last ended its transaction; -1 if none has.
        transaction_first_offset: the first offset of its open transaction; None if it has none.
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "producer_id", "transaction_first_offset")

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = NO_PRODUCER_EPOCH
        self.batches: tuple[BatchMemory, ...] = ()
        self.last_timestamp = NO_TIMESTAMP
        self.coordinator_epoch = _NO_COORDINATOR_EPOCH
        self.transaction_first_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record, `NO_SEQUENCE` if no batch is remembered."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int | None:
        """The offset of its last record, None if no batch is remembered."""
        return self.batches[-1].last_offset if self.batches else None

    def find_duplicate(self, batch: BatchHeader) -> BatchMemory | None:
        """Returns the remembered batch with the same epoch and sequence numbers; None if there is none."""
        if batch.producer_epoch != self.epoch:
            return None
        if self.batches and batch.base_sequence == (self.batches[-1].last_sequence + 1) & MOST_SEQUENCE:
            return None
        last_sequence = batch.last_sequence
        for memory in self.batches:
            if memory.last_sequence == last_sequence and memory.first_sequence == batch.base_sequence:
                return memory
        return None

    # Checks

    def check_epoch(self, epoch: int) -> None:
        """Raises unless the epoch of a batch is the current epoch or newer.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH.
        """
        if epoch < self.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {self.producer_id} has epoch {self.epoch}, the batch has {epoch}",
            )

    def check_sequence(self, batch: BatchHeader) -> None:
        """Raises unless the batch has the next sequence number of this producer.

        Raises:
            KafkaError: OUT_OF_ORDER_SEQUENCE_NUMBER.

        Source: ProducerAppendInfo.checkSequence.
        """
        if self.epoch == NO_PRODUCER_EPOCH:
            return
        if batch.producer_epoch != self.epoch:
            if batch.base_sequence != 0:
                raise _out_of_order(
                    f"producer {self.producer_id} begins epoch {batch.producer_epoch} with sequence number "
                    f"{batch.base_sequence}, its last epoch was {self.epoch}",
                )
            return
        last_sequence = self.last_sequence
        if batch.base_sequence != (last_sequence + 1) & MOST_SEQUENCE:
            raise _out_of_order(
                f"producer {self.producer_id} sent sequence number {batch.base_sequence}, its last was {last_sequence}",
            )

    def check_beginning(self, batch: BatchHeader, beginning: VerificationState) -> None:
        """Raises unless the batch can be the first of a transaction.

        Raises:
            KafkaError: OUT_OF_ORDER_SEQUENCE_NUMBER.

        Source: ProducerAppendInfo.checkSequence.
        """
        least = 0 if beginning.must_be_zero and not self.batches else beginning.lowest_sequence
        if batch.base_sequence > least:
            raise _out_of_order(
                f"producer {self.producer_id} sent sequence number {batch.base_sequence}, its transaction begins with {least}",
            )

    def check_transaction(self, batch: BatchHeader) -> None:
        """Raises unless the batch belongs to the open transaction.

        Raises:
            KafkaError: INVALID_TXN_STATE.

        Source: ProducerAppendInfo.appendDataBatch.
        """
        if not batch.attributes & TRANSACTIONAL_MASK:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {self.producer_id} has an open transaction, to which the batch does not belong",
            )

    def check_marker(self, epoch: int, marker: EndMarker, transaction_version: int) -> None:
        """Raises unless the marker may end a transaction of this producer.

        With transactions v2 a marker has the next epoch. A marker with the current epoch is a repeated marker; or the epochs are
        used up, and the producer got another id.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.

        Source: KIP-890; ProducerAppendInfo.checkProducerEpoch and checkCoordinatorEpoch (4.3).
        """
        has_own_epoch = transaction_version >= _FIRST_VERSION_WITH_EPOCH_FOR_EACH_TRANSACTION
        is_again = epoch == self.epoch and (self.transaction_first_offset is None or epoch == MOST_EPOCH)
        if epoch < self.epoch or (has_own_epoch and epoch == self.epoch and not is_again):
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {self.producer_id} has epoch {self.epoch}, the marker has {epoch}",
            )
        if marker.coordinator_epoch < self.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {self.coordinator_epoch} has ended a transaction of producer {self.producer_id}, "
                f"the marker is of {marker.coordinator_epoch}",
            )

    # Changes

    def add(self, batch: BatchHeader) -> None:
        """Remembers the next batch."""
        memory = BatchMemory(batch.last_sequence, batch.last_offset, batch.last_offset_delta, batch.max_timestamp)
        if batch.producer_epoch != self.epoch:
            self.epoch = batch.producer_epoch
            self.batches = (memory,)
        else:
            self.batches = (*self.batches[1 - BATCHES_KEPT :], memory)
        self.last_timestamp = batch.max_timestamp

    def end_transaction(self, epoch: int, coordinator_epoch: int, timestamp: int) -> None:
        """Ends the producer's transaction after a marker; with a new epoch, sequence numbers start again."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches = ()
        self.coordinator_epoch = coordinator_epoch
        self.transaction_first_offset = None
        self.last_timestamp = timestamp


def _out_of_order(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, reason)
