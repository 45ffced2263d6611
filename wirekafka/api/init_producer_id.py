from __future__ import annotations

from typing import Annotated

from wirekafka.wire.types import Message, Bool, Int16, Int32, Int64, NullableString, String, nullable, since

# InitProducerId: key 22, versions 0-6, flexible since 2


class InitProducerIdRequest(Message):
    transactional_id: Annotated[NullableString, nullable(0)] = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, since(3)] = -1
    producer_epoch: Annotated[Int16, since(3)] = -1
    enable2_pc: Annotated[Bool, since(6)] = False
    keep_prepared_txn: Annotated[Bool, since(6)] = False


class InitProducerIdResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Annotated[Int64, since(6)] = -1
    ongoing_txn_producer_epoch: Annotated[Int16, since(6)] = -1
