//go:build !v2

// What differs between the two drivers: this one is gocql 1.7.
package main

import (
	"fmt"
	"io"
	"time"

	driver "github.com/gocql/gocql"
)

const (
	driverName = "gocql 1.7"
	hasVectors = false
)

type (
	Session   = driver.Session
	Cluster   = driver.ClusterConfig
	Query     = driver.Query
	BatchType = driver.BatchType
	UUID      = driver.UUID
	Duration  = driver.Duration
)

const (
	LoggedBatch   = driver.LoggedBatch
	UnloggedBatch = driver.UnloggedBatch
	CounterBatch  = driver.CounterBatch
)

var UnsetValue = driver.UnsetValue

type statement struct {
	text   string
	values []any
}

func newCluster(host string) *Cluster {
	cluster := driver.NewCluster(host)
	cluster.ReconnectionPolicy = &driver.ConstantReconnectionPolicy{MaxRetries: 5, Interval: reconnectEvery}
	cluster.Consistency = driver.LocalOne
	return cluster
}

func compress(cluster *Cluster, name string) error {
	if name != "snappy" {
		return fmt.Errorf("gocql 1.7 has snappy, not %s", name)
	}
	cluster.Compressor = driver.SnappyCompressor{}
	return nil
}

func batch(session *Session, kind BatchType, statements []statement) error {
	it := session.NewBatch(kind)
	for _, one := range statements {
		it.Query(one.text, one.values...)
	}
	return session.ExecuteBatch(it)
}

func parseUUID(text string) (UUID, error) { return driver.ParseUUID(text) }

// codeOf is the protocol's error code, 0 for an error of another kind.
func codeOf(err error) int {
	if known, ok := err.(driver.RequestError); ok {
		return known.Code()
	}
	return 0
}

// policies are the driver's ways to choose a node, by name.
func policies() map[string]driver.HostSelectionPolicy {
	return map[string]driver.HostSelectionPolicy{
		"round robin":            driver.RoundRobinHostPolicy(),
		"datacenter":             driver.DCAwareRoundRobinPolicy("datacenter1"),
		"rack":                   driver.RackAwareRoundRobinPolicy("datacenter1", "rack1"),
		"token":                  driver.TokenAwareHostPolicy(driver.RoundRobinHostPolicy()),
		"token, then datacenter": driver.TokenAwareHostPolicy(driver.DCAwareRoundRobinPolicy("datacenter1"), driver.ShuffleReplicas()),
	}
}

func traceInto(session *Session, out io.Writer) driver.Tracer {
	return driver.NewTraceWriter(session, out)
}

func speculative(attempts int, after time.Duration) driver.SpeculativeExecutionPolicy {
	return &driver.SimpleSpeculativeExecution{NumAttempts: attempts, TimeoutDelay: after}
}

// retrying sends a request again up to so often, whatever its error.
func retrying(times int) driver.RetryPolicy { return &driver.SimpleRetryPolicy{NumRetries: times} }

// patient is as retrying, but hands refusals to the application at once.
type patient struct{ driver.SimpleRetryPolicy }

func (p *patient) GetRetryType(err error) driver.RetryType {
	if codeOf(err) == configError {
		return driver.Rethrow
	}
	return p.SimpleRetryPolicy.GetRetryType(err)
}

func patiently(times int) driver.RetryPolicy {
	return &patient{driver.SimpleRetryPolicy{NumRetries: times}}
}

func named(name string, value any) any { return driver.NamedValue(name, value) }

func isNotFound(err error) bool { return err == driver.ErrNotFound }

func columnsOf(session *Session, keyspace, table string) ([]string, error) {
	metadata, err := session.KeyspaceMetadata(keyspace)
	if err != nil {
		return nil, err
	}
	found := metadata.Tables[table]
	if found == nil {
		return nil, fmt.Errorf("no table %s in the metadata", table)
	}
	return found.OrderedColumns, nil
}

// inKeyspace is a query in a keyspace of its own; nil where that is not possible, as it is with this driver.
func inKeyspace(*app, *Query, string) *Query { return nil }
