// Load of franz-go on a cluster whose brokers fail: see ../load.py for the arguments and for the lines of the history.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	name            = "franz-go"
	clockMonotonic  = 1
	pause           = 50 * time.Millisecond
	abortEach       = 4
	plainTopic      = "plain"
	transactedTopic = "transacted"
)

// History writes lines to a file, each with the time of the clock that all recorders of the machine share.
type History struct {
	mutex sync.Mutex
	file  *os.File
	last  int64
}

func (history *History) add(fields string, arguments ...any) {
	history.mutex.Lock()
	defer history.mutex.Unlock()
	var now syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0)
	history.last = max(history.last+1, now.Nano())
	fmt.Fprintf(history.file, "%d\t%s\n", history.last, fmt.Sprintf(fields, arguments...))
}

// Load is what all parts of the program share.
type Load struct {
	bootstrap  []string
	partitions int
	history    History
	stopped    chan struct{}
}

func (load *Load) isStopped() bool {
	select {
	case <-load.stopped:
		return true
	case <-time.After(pause):
		return false
	}
}

func (load *Load) open(options ...kgo.Opt) *kgo.Client {
	common := []kgo.Opt{
		kgo.SeedBrokers(load.bootstrap...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProduceRequestTimeout(5 * time.Second),
		kgo.RequestTimeoutOverhead(time.Second),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.RetryTimeout(2 * time.Minute),
	}
	client, err := kgo.NewClient(append(common, options...)...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return client
}

func (load *Load) send(client *kgo.Client, topic string, partition int, payload, transaction string) {
	load.history.add("sent\t%s\t%s\t%d\t%s\t%s", name, topic, partition, payload, transaction)
	record := &kgo.Record{Topic: topic, Partition: int32(partition), Value: []byte(payload)}
	client.Produce(context.Background(), record, func(record *kgo.Record, err error) {
		if err != nil {
			load.history.add("unknown\t%s\t%v", payload, err)
		} else {
			load.history.add("acked\t%s\t%d", payload, record.Offset)
		}
	})
}

// produce writes to all partitions with an idempotent producer.
func (load *Load) produce() {
	client := load.open()
	defer client.Close()
	for number := 0; !load.isStopped(); number++ {
		for partition := range load.partitions {
			load.send(client, plainTopic, partition, fmt.Sprintf("%s-p-%d-%d", name, partition, number), "-")
		}
	}
	client.Flush(context.Background())
}

// transact writes to all partitions in each transaction, and aborts some.
func (load *Load) transact() {
	options := []kgo.Opt{kgo.TransactionalID(name), kgo.TransactionTimeout(time.Minute)}
	client := load.open(options...)
	for number := 0; !load.isStopped(); number++ {
		transaction := fmt.Sprintf("%s-t-%d", name, number)
		load.history.add("begun\t%s\t%s\t1", transaction, name)
		if err := load.transactOnce(client, transaction, number%abortEach == abortEach-1); err != nil {
			fmt.Fprintln(os.Stderr, transaction, err)
			load.history.add("gave-up\t%s\t%v", transaction, err)
			client.Close()
			client = load.open(options...)
		}
	}
	client.Close()
}

func (load *Load) transactOnce(client *kgo.Client, transaction string, isAborted bool) error {
	background := context.Background()
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	for partition := range load.partitions {
		load.send(client, transactedTopic, partition, fmt.Sprintf("%s-%d", transaction, partition), transaction)
	}
	if err := client.Flush(background); err != nil {
		return err
	}
	if isAborted {
		load.history.add("end\t%s\tabort", transaction)
		if err := client.EndTransaction(background, kgo.TryAbort); err != nil {
			return err
		}
		load.history.add("aborted\t%s", transaction)
		return nil
	}
	load.history.add("end\t%s\tcommit", transaction)
	if err := client.EndTransaction(background, kgo.TryCommit); err != nil {
		return err
	}
	load.history.add("committed\t%s", transaction)
	return nil
}

// consume reads all committed records, from the beginning.
func (load *Load) consume() {
	starts := map[string]map[int32]kgo.Offset{}
	positions := map[string]int64{}
	for _, topic := range []string{plainTopic, transactedTopic} {
		starts[topic] = map[int32]kgo.Offset{}
		for partition := range load.partitions {
			starts[topic][int32(partition)] = kgo.NewOffset().At(0)
		}
	}
	client := load.open(
		kgo.ConsumePartitions(starts),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxWait(100*time.Millisecond),
	)
	for {
		fetches := client.PollFetches(context.Background())
		fetches.EachError(func(topic string, partition int32, err error) {
			fmt.Fprintln(os.Stderr, "fetch", topic, partition, err)
		})
		fetches.EachRecord(func(record *kgo.Record) {
			place := record.Topic + "-" + strconv.Itoa(int(record.Partition))
			load.history.add("read\t%s\t%s\t%d\t%d\t%s\t%d",
				name, record.Topic, record.Partition, record.Offset, record.Value, positions[place])
			positions[place] = record.Offset + 1
		})
	}
}

func main() {
	file, err := os.Create(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	partitions, _ := strconv.Atoi(os.Args[2])
	load := &Load{partitions: partitions, stopped: make(chan struct{}), bootstrap: os.Args[3:]}
	load.history.file = file
	go load.consume()
	var writers sync.WaitGroup
	for _, write := range []func(){load.produce, load.transact} {
		writers.Add(1)
		go func() {
			defer writers.Done()
			write()
		}()
	}
	input := bufio.NewReader(os.Stdin)
	input.ReadString('\n') // "stop": ends the writers
	close(load.stopped)
	writers.Wait()
	fmt.Println("stopped")
	input.ReadString('\n') // "end"
}
