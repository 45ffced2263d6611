// Starts a broker in a container, and prints its address; stops it when the standard input ends.
//
//	docker build -f docker/Dockerfile -t wirekafka .
//	cd examples/testcontainers/go && go run .
//
// docs/docker.md says more.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

func start(ctx context.Context) (testcontainers.Container, string, error) {
	broker, err := testcontainers.Run(ctx, "wirekafka",
		testcontainers.WithExposedPorts("9092/tcp"),
		testcontainers.WithEnv(map[string]string{"WIREKAFKA_PUBLISHED": "@/dev/shm/published", "WIREKAFKA_TOPICS": "orders:3"}),
		testcontainers.WithWaitStrategy(wait.ForLog(" ready on ")),
	)
	if err != nil {
		return broker, "", err
	}
	bootstrap, err := broker.PortEndpoint(ctx, "9092/tcp", "")
	if err != nil {
		return broker, "", err
	}
	_, _, err = broker.Exec(ctx, []string{"sh", "-c", "echo " + bootstrap + " > /dev/shm/published"})
	return broker, bootstrap, err
}

func main() {
	broker, bootstrap, err := start(context.Background())
	if err == nil {
		fmt.Println(bootstrap)
		_, err = io.Copy(io.Discard, os.Stdin)
	}
	if stopped := testcontainers.TerminateContainer(broker); err == nil {
		err = stopped
	}
	if err != nil {
		log.Fatal(err)
	}
}
