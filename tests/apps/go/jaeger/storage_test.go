// Jaeger's own storage suite on its Cassandra storage, then traces that are written while a node is killed.
//
// Built by `go test -c` (tests/install jaeger), since the suite takes a *testing.T. JAEGER_SCHEMA is the template of the
// schema in Jaeger's module, which is not changed here.
package storage

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"go.uber.org/zap"

	"github.com/jaegertracing/jaeger/model"
	"github.com/jaegertracing/jaeger/pkg/config"
	"github.com/jaegertracing/jaeger/pkg/metrics"
	"github.com/jaegertracing/jaeger/plugin/storage/cassandra"
	"github.com/jaegertracing/jaeger/plugin/storage/integration"
	"github.com/jaegertracing/jaeger/storage/dependencystore"
	"github.com/jaegertracing/jaeger/storage/spanstore"
)

const (
	keyspace = "jaeger_v1_dc1"
	archive  = "jaeger_v1_dc1_archive"
	spans    = 4 // of a trace
)

var hosts = strings.Split(os.Getenv("HOSTS"), ",")

// check reports what `what` returned as the runner expects it.
func check(t *testing.T, name string, what func() error) bool {
	if err := what(); err != nil {
		fmt.Printf("FAILED %s: %s\n", name, strings.Join(strings.Fields(err.Error()), " "))
		t.Fail()
		return false
	}
	fmt.Printf("ok %s\n", name)
	return true
}

// schema creates both keyspaces as Jaeger's create.sh does in production mode.
func schema() error {
	template, err := os.ReadFile(os.Getenv("JAEGER_SCHEMA"))
	if err != nil {
		return err
	}
	cluster := gocql.NewCluster(hosts...)
	cluster.Timeout = 30 * time.Second
	session, err := cluster.CreateSession()
	if err != nil {
		return err
	}
	defer session.Close()
	text := regexp.MustCompile(`--.*`).ReplaceAllString(string(template), "")
	for _, name := range []string{keyspace, archive} {
		filled := strings.NewReplacer(
			"${keyspace}", name,
			"${replication}", fmt.Sprintf("{'class': 'NetworkTopologyStrategy', '%s': '3' }", os.Getenv("DATACENTER")),
			"${trace_ttl}", "172800", "${dependencies_ttl}", "0",
			"${compaction_window_size}", "96", "${compaction_window_unit}", "MINUTES",
		).Replace(text)
		for _, statement := range strings.Split(filled, ";") {
			if strings.TrimSpace(statement) == "" {
				continue
			}
			if err := session.Query(statement).Exec(); err != nil {
				return fmt.Errorf("%w: %s", err, statement)
			}
		}
	}
	return nil
}

type suite struct {
	integration.StorageIntegration
	factory *cassandra.Factory
}

func newSuite() (*suite, error) {
	s := &suite{factory: cassandra.NewFactory()}
	s.GetDependenciesReturnsSource = true
	s.SkipList = integration.CassandraSkippedTests
	s.CleanUp = func(t *testing.T) {
		if err := s.factory.Purge(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	flags := []string{
		"--cassandra.keyspace=" + keyspace,
		"--cassandra-archive.keyspace=" + archive,
		"--cassandra-archive.enabled=true",
	}
	for _, namespace := range []string{"cassandra", "cassandra-archive"} {
		flags = append(flags,
			"--"+namespace+".servers="+strings.Join(hosts, ","),
			"--"+namespace+".consistency=QUORUM",
			"--"+namespace+".local-dc="+os.Getenv("DATACENTER"),
			"--"+namespace+".timeout=15s",
			"--"+namespace+".max-retry-attempts=10",
		)
	}
	v, command := config.Viperize(s.factory.AddFlags)
	if err := command.ParseFlags(flags); err != nil {
		return nil, err
	}
	logger := zap.NewNop()
	s.factory.InitFromViper(v, logger)
	err := s.factory.Initialize(metrics.NullFactory, logger)
	for _, make := range []func() error{
		func() (err error) { s.SpanWriter, err = s.factory.CreateSpanWriter(); return },
		func() (err error) { s.SpanReader, err = s.factory.CreateSpanReader(); return },
		func() (err error) { s.ArchiveSpanReader, err = s.factory.CreateArchiveSpanReader(); return },
		func() (err error) { s.ArchiveSpanWriter, err = s.factory.CreateArchiveSpanWriter(); return },
		func() (err error) { s.SamplingStore, err = s.factory.CreateSamplingStore(0); return },
		func() (err error) { s.DependencyReader, err = s.factory.CreateDependencyReader(); return },
	} {
		if err == nil {
			err = make()
		}
	}
	if err != nil {
		return nil, err
	}
	s.DependencyWriter = s.DependencyReader.(dependencystore.Writer)
	return s, nil
}

var began = time.Now().Add(-time.Hour).Truncate(time.Microsecond)

// span is one of the spans of the trace with that number.
func span(trace, n int) *model.Span {
	tags := []model.KeyValue{model.String("shop", fmt.Sprintf("shop-%d", trace%10)), model.Int64("trace", int64(trace)), model.Bool("even", trace%2 == 0)}
	references := []model.SpanRef{}
	id := model.NewTraceID(7, uint64(trace+1))
	if n > 0 {
		references = append(references, model.NewChildOfRef(id, model.NewSpanID(uint64(n))))
	}
	return &model.Span{
		TraceID:       id,
		SpanID:        model.NewSpanID(uint64(n + 1)),
		OperationName: fmt.Sprintf("operation-%d", n),
		References:    references,
		StartTime:     began.Add(time.Duration(trace) * time.Second),
		Duration:      time.Duration(trace+1) * time.Millisecond,
		Tags:          tags,
		Process:       model.NewProcess("storm", []model.KeyValue{model.String("host", "h")}),
		Logs:          []model.Log{{Timestamp: began, Fields: []model.KeyValue{model.String("event", "one")}}},
	}
}

// storm writes traces until the killed node is back, and returns how many.
func storm(s *suite) (int, error) {
	var back atomic.Bool
	written := 0
	for ; !back.Load() || written < 150; written++ {
		if written == 50 {
			fmt.Println("kill?")
			go func() {
				line := make([]byte, 16)
				os.Stdin.Read(line)
				back.Store(true)
			}()
		}
		for n := 0; n < spans; n++ {
			var err error
			// A collector keeps a span whose write failed and writes it again.
			for attempt := 0; attempt < 20; attempt++ {
				if err = s.SpanWriter.WriteSpan(context.Background(), span(written, n)); err == nil {
					break
				}
				fmt.Fprintf(os.Stderr, "attempt %d at trace %d: %s\n", attempt, written, err)
				time.Sleep(200 * time.Millisecond)
			}
			if err != nil {
				return written, fmt.Errorf("trace %d: %w", written, err)
			}
		}
	}
	return written, nil
}

func traces(s *suite, written int) error {
	for trace := 0; trace < written; trace++ {
		found, err := s.SpanReader.GetTrace(context.Background(), model.NewTraceID(7, uint64(trace+1)))
		if err != nil {
			return fmt.Errorf("trace %d: %w", trace, err)
		}
		if len(found.Spans) != spans {
			return fmt.Errorf("trace %d has %d spans instead of %d", trace, len(found.Spans), spans)
		}
		for _, one := range found.Spans {
			expected := span(trace, int(one.SpanID)-1)
			if one.OperationName != expected.OperationName || one.Duration != expected.Duration || !one.StartTime.Equal(expected.StartTime) ||
				len(one.References) != len(expected.References) || len(one.Tags) != len(expected.Tags) || len(one.Logs) != 1 || one.Process.ServiceName != "storm" {
				return fmt.Errorf("trace %d has the span %v instead of %v", trace, one, expected)
			}
		}
	}
	return nil
}

func search(s *suite, written int) error {
	query := &spanstore.TraceQueryParameters{
		ServiceName: "storm", Tags: map[string]string{"shop": "shop-3"}, NumTraces: 10 * written,
		StartTimeMin: began.Add(-time.Minute), StartTimeMax: time.Now().Add(time.Hour),
	}
	found, err := s.SpanReader.FindTraces(context.Background(), query)
	if err != nil {
		return err
	}
	expected := 0
	for trace := 0; trace < written; trace++ {
		if trace%10 == 3 {
			expected++
		}
	}
	if len(found) != expected {
		return fmt.Errorf("%d traces by tag instead of %d", len(found), expected)
	}
	ids, err := s.SpanReader.FindTraceIDs(context.Background(), &spanstore.TraceQueryParameters{
		// Jaeger asks for longer than DurationMin.
		ServiceName: "storm", DurationMin: time.Duration(written-10) * time.Millisecond, DurationMax: time.Hour, NumTraces: 100,
		StartTimeMin: began.Add(-time.Minute), StartTimeMax: time.Now().Add(time.Hour),
	})
	if err != nil {
		return err
	}
	if len(ids) != 10 {
		return fmt.Errorf("%d traces by duration instead of 10", len(ids))
	}
	operations, err := s.SpanReader.GetOperations(context.Background(), spanstore.OperationQueryParameters{ServiceName: "storm"})
	if err != nil {
		return err
	}
	if len(operations) != spans {
		return fmt.Errorf("%d operations instead of %d", len(operations), spans)
	}
	return nil
}

func TestStorage(t *testing.T) {
	if !check(t, "schema", schema) {
		return
	}
	s, err := newSuite()
	if err != nil {
		t.Fatal(err)
	}
	check(t, "storage_suite", func() error {
		if !t.Run("suite", s.RunAll) {
			return fmt.Errorf("Jaeger's storage suite failed, see its lines `--- FAIL`")
		}
		return nil
	})
	written := 0
	check(t, "kill_middle", func() (err error) { written, err = storm(s); return })
	check(t, "traces", func() error { return traces(s, written) })
	check(t, "search", func() error { return search(s, written) })
	if err := s.factory.Close(); err != nil {
		t.Fatal(err)
	}
}
