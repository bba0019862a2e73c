// A Go application, checked against a running node. Built twice: with gocql 1.7, and with `-tags v2` with Apache's driver 2.
//
//	go-client HOST [--protocol N] [--compression NAME] [--check NAME]
//
// Prints `ok NAME` or `FAILED NAME: why` for each check and ends with status 1 if one failed. `--check` runs only that check.
// It asks for what only the caller can do, and reads a line, which is `no` if the caller cannot: `restart?` when the node may
// be restarted (`done`), and `refusals?` for the numbers of reads and writes that the nodes have refused by rate limits.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

const (
	keyspace       = "go_client"
	reconnectEvery = 200 * time.Millisecond
	restartTakes   = 60 * time.Second
)

type app struct {
	cluster *Cluster
	session *Session
	// Version 3 of the protocol has no payloads and no warnings.
	third  bool
	input  *bufio.Scanner
	only   string // the name of the only check to run; empty for all
	failed int
}

func (a *app) check(name string, run func() error) {
	if a.only != "" && a.only != name {
		return
	}
	if err := run(); err != nil {
		fmt.Printf("FAILED %s: %v\n", name, err)
		a.failed++
		return
	}
	fmt.Printf("ok %s\n", name)
}

func (a *app) exec(text string, values ...any) error {
	if err := a.session.Query(text, values...).Exec(); err != nil {
		return fmt.Errorf("%.120s: %w", text, err)
	}
	return nil
}

func (a *app) execAll(texts ...string) error {
	for _, text := range texts {
		if err := a.exec(text); err != nil {
			return err
		}
	}
	return nil
}

// ints reads one column of ints of all pages.
func (a *app) ints(query *Query) ([]int, error) {
	var all []int
	var one int
	rows := query.Iter()
	for rows.Scan(&one) {
		all = append(all, one)
	}
	return all, rows.Close()
}

func same(got, want []int) error {
	if fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("got %v, expected %v", got, want)
	}
	return nil
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func (a *app) paging() error {
	if err := a.exec("CREATE TABLE paged (pk int, ck int, v text, PRIMARY KEY (pk, ck))"); err != nil {
		return err
	}
	const rows = 250
	for ck := 0; ck < rows; ck++ {
		if err := a.exec("INSERT INTO paged (pk, ck, v) VALUES (?, ?, ?)", 7, ck, fmt.Sprint("value ", ck)); err != nil {
			return err
		}
	}
	for _, size := range []int{1, 7, 100, rows, rows + 1} {
		got, err := a.ints(a.session.Query("SELECT ck FROM paged WHERE pk = ?", 7).PageSize(size))
		if err != nil {
			return err
		}
		if err := same(got, upTo(rows)); err != nil {
			return fmt.Errorf("page size %d: %w", size, err)
		}
	}
	// A page at a time, every other one by another session that knows nothing but the state.
	other, err := a.cluster.CreateSession()
	if err != nil {
		return err
	}
	defer other.Close()
	var state []byte
	var got []int
	for page := 0; ; page++ {
		session := a.session
		if page%2 == 1 {
			session = other
		}
		iter := session.Query("SELECT ck FROM paged WHERE pk = ?", 7).PageSize(60).PageState(state).Iter()
		state = append([]byte(nil), iter.PageState()...)
		var ck, n int
		for n = 0; iter.Scan(&ck); n++ {
			got = append(got, ck)
		}
		if err := iter.Close(); err != nil {
			return err
		}
		if n > 60 {
			return fmt.Errorf("a page of %d rows", n)
		}
		if len(state) == 0 {
			break
		}
	}
	if err := same(got, upTo(rows)); err != nil {
		return err
	}
	newest, err := a.ints(a.session.Query("SELECT ck FROM paged WHERE pk = 7 ORDER BY ck DESC LIMIT 25").PageSize(10))
	if err == nil && (len(newest) != 25 || newest[0] != rows-1 || newest[24] != rows-25) {
		err = fmt.Errorf("the newest: %v", newest)
	}
	return err
}

func (a *app) batches() error {
	if err := a.exec("CREATE TABLE batched (pk int, ck int, v int, PRIMARY KEY (pk, ck))"); err != nil {
		return err
	}
	for pk, kind := range map[int]BatchType{1: LoggedBatch, 2: UnloggedBatch} {
		if err := a.exec("INSERT INTO batched (pk, ck, v) VALUES (?, 9, 9)", pk); err != nil {
			return err
		}
		insert := "INSERT INTO batched (pk, ck, v) VALUES (?, ?, ?)"
		err := batch(a.session, kind, []statement{
			{insert, []any{pk, 1, 11}},
			{insert, []any{pk, 2, 22}},
			{fmt.Sprintf("INSERT INTO batched (pk, ck, v) VALUES (%d, 3, 33)", pk), nil},
			{"DELETE FROM batched WHERE pk = ? AND ck = ?", []any{pk, 9}},
		})
		if err != nil {
			return err
		}
		got, err := a.ints(a.session.Query("SELECT v FROM batched WHERE pk = ?", pk))
		if err != nil {
			return err
		}
		if err := same(got, []int{11, 22, 33}); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) nullAndUnset() error {
	if err := a.exec("CREATE TABLE holes (pk int PRIMARY KEY, a int, b text)"); err != nil {
		return err
	}
	insert := "INSERT INTO holes (pk, a, b) VALUES (?, ?, ?)"
	read := func() string {
		var first *int
		var second *string
		if err := a.session.Query("SELECT a, b FROM holes WHERE pk = 1").Scan(&first, &second); err != nil {
			return err.Error()
		}
		text := "null "
		if first != nil {
			text = fmt.Sprint(*first, " ")
		}
		if second == nil {
			return text + "null"
		}
		return text + *second
	}
	for _, step := range []struct {
		a, b any
		want string
	}{{5, "five", "5 five"}, {UnsetValue, "six", "5 six"}, {nil, UnsetValue, "null six"}, {UnsetValue, "", "null "}, {UnsetValue, nil, "null null"}} {
		if a.third && (step.a == UnsetValue || step.b == UnsetValue) {
			continue // version 3 of the protocol knows nothing unset
		}
		if err := a.exec(insert, 1, step.a, step.b); err != nil {
			return err
		}
		if got := read(); got != step.want {
			return fmt.Errorf("%q instead of %q", got, step.want)
		}
	}
	return nil
}

// schemaChange uses prepared statements before and after their table changes.
func (a *app) schemaChange() error {
	if err := a.execAll("CREATE TABLE changing (pk int PRIMARY KEY, v int)", "INSERT INTO changing (pk, v) VALUES (1, 10)"); err != nil {
		return err
	}
	all := func() (map[string]any, error) {
		row := map[string]any{}
		return row, a.session.Query("SELECT * FROM changing WHERE pk = ?", 1).MapScan(row)
	}
	if row, err := all(); err != nil || len(row) != 2 {
		return fmt.Errorf("before: %v %v", row, err)
	}
	if err := a.execAll("ALTER TABLE changing ADD w text", "UPDATE changing SET w = 'new' WHERE pk = 1"); err != nil {
		return err
	}
	if row, err := all(); err != nil || len(row) != 3 || row["w"] != "new" || row["v"] != 10 {
		return fmt.Errorf("with a column more: %v %v", row, err)
	}
	if err := a.exec("ALTER TABLE changing DROP v"); err != nil {
		return err
	}
	if row, err := all(); err != nil || len(row) != 2 || row["w"] != "new" {
		return fmt.Errorf("with a column less: %v %v", row, err)
	}
	if err := a.execAll("DROP TABLE changing", "CREATE TABLE changing (pk int PRIMARY KEY, other text)"); err != nil {
		return err
	}
	if _, err := all(); !isNotFound(err) {
		return fmt.Errorf("a new table of the same name: %v", err)
	}
	return nil
}

func (a *app) metadata() error {
	if err := a.exec("CREATE TABLE described (a int, b text, c timeuuid, m map<text, frozen<list<int>>>, s set<int> static, PRIMARY KEY ((a, b), c)) WITH CLUSTERING ORDER BY (c DESC)"); err != nil {
		return err
	}
	// Version 2 reads the schema after the event, in its own time.
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(reconnectEvery) {
		names, err := columnsOf(a.session, keyspace, "described")
		if err == nil && len(names) != 5 {
			err = fmt.Errorf("columns: %v", names)
		}
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

func (a *app) errors() error {
	for text, want := range map[string]int{
		"SELEC * FROM paged":                      0x2000,
		"SELECT nothing FROM paged":               0x2200,
		"SELECT * FROM no_such_table":             0x2200,
		"CREATE TABLE paged (pk int PRIMARY KEY)": 0x2400,
		"CREATE KEYSPACE " + keyspace + " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}": 0x2400,
		"CREATE KEYSPACE no_class WITH replication = {'class': 'NoSuchStrategy'}":                                  0x2300,
		"SELECT * FROM paged WHERE v = 'x'": 0x2200,
	} {
		if err := a.session.Query(text).Exec(); codeOf(err) != want {
			return fmt.Errorf("%s: %v (code %#x)", text, err, codeOf(err))
		}
	}
	return nil
}

func (a *app) concurrency() error {
	if err := a.exec("CREATE TABLE busy (pk int PRIMARY KEY, v int)"); err != nil {
		return err
	}
	const workers, each = 16, 40
	failures := make(chan error, workers)
	var group sync.WaitGroup
	for worker := 0; worker < workers; worker++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := 0; i < each; i++ {
				pk := worker*each + i
				var v int
				err := a.session.Query("INSERT INTO busy (pk, v) VALUES (?, ?)", pk, pk*3).Exec()
				if err == nil {
					err = a.session.Query("SELECT v FROM busy WHERE pk = ?", pk).Scan(&v)
				}
				if err == nil && v != pk*3 {
					err = fmt.Errorf("%d instead of %d", v, pk*3)
				}
				if err != nil {
					failures <- err
					return
				}
			}
		}()
	}
	group.Wait()
	close(failures)
	for err := range failures {
		return err
	}
	var count int
	err := a.session.Query("SELECT count(*) FROM busy").Scan(&count)
	if err == nil && count != workers*each {
		err = fmt.Errorf("%d rows", count)
	}
	return err
}

func (a *app) counters() error {
	if err := a.exec("CREATE TABLE counted (pk int PRIMARY KEY, n counter)"); err != nil {
		return err
	}
	for i := 1; i <= 10; i++ {
		if err := a.exec("UPDATE counted SET n = n + ? WHERE pk = ?", int64(i), 1); err != nil {
			return err
		}
	}
	err := batch(a.session, CounterBatch, []statement{{"UPDATE counted SET n = n - ? WHERE pk = ?", []any{int64(5), 1}}, {"UPDATE counted SET n = n + 7 WHERE pk = 2", nil}})
	if err != nil {
		return err
	}
	got, err := a.ints(a.session.Query("SELECT n FROM counted WHERE pk IN (1, 2)"))
	if err != nil {
		return err
	}
	return same(got, []int{50, 7})
}

// ask puts a question to the test that runs this program.
func (a *app) ask(question string) (string, error) {
	fmt.Println(question)
	if !a.input.Scan() {
		return "", fmt.Errorf("no answer: %v", a.input.Err())
	}
	return a.input.Text(), nil
}

// restart is what an application sees when its only node goes away for a moment.
func (a *app) restart() error {
	if err := a.execAll("CREATE TABLE kept (pk int PRIMARY KEY, v blob)"); err != nil {
		return err
	}
	for pk := 0; pk < 50; pk++ {
		if err := a.exec("INSERT INTO kept (pk, v) VALUES (?, ?)", pk, bytes.Repeat([]byte{byte(pk)}, 100)); err != nil {
			return err
		}
	}
	answer, err := a.ask("restart?")
	if err != nil {
		return err
	}
	if answer != "done" {
		fmt.Println("not run: restart (the node is not ours)")
		return nil
	}
	for end := time.Now().Add(restartTakes); ; time.Sleep(reconnectEvery) {
		var v []byte
		err := a.session.Query("SELECT v FROM kept WHERE pk = ?", 0).Scan(&v)
		if err == nil {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("not back after %v: %w", restartTakes, err)
		}
	}
	for pk := 0; pk < 50; pk++ {
		var v []byte
		if err := a.session.Query("SELECT v FROM kept WHERE pk = ?", pk).Scan(&v); err != nil {
			return err
		}
		if !bytes.Equal(v, bytes.Repeat([]byte{byte(pk)}, 100)) {
			return fmt.Errorf("row %d is %x", pk, v)
		}
	}
	return a.execAll("INSERT INTO kept (pk, v) VALUES (100, 0xff)", "ALTER TABLE kept ADD more int")
}

func run(host string, protocol int, compression, only string) (int, error) {
	connect := func(keyspace string) (*Cluster, *Session, error) {
		cluster := newCluster(host)
		cluster.Keyspace, cluster.Timeout, cluster.ConnectTimeout = keyspace, 30*time.Second, 30*time.Second
		cluster.ReconnectInterval = time.Second
		cluster.ProtoVersion = protocol
		if compression != "" {
			if err := compress(cluster, compression); err != nil {
				return nil, nil, err
			}
		}
		session, err := cluster.CreateSession()
		return cluster, session, err
	}
	_, first, err := connect("")
	if err != nil {
		return 0, err
	}
	for _, text := range []string{
		"DROP KEYSPACE IF EXISTS " + keyspace,
		"CREATE KEYSPACE " + keyspace + " WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}",
	} {
		if err := first.Query(text).Exec(); err != nil {
			return 0, fmt.Errorf("%s: %w", text, err)
		}
	}
	first.Close()
	cluster, session, err := connect(keyspace)
	if err != nil {
		return 0, err
	}
	defer session.Close()
	a := &app{cluster: cluster, session: session, third: protocol == 3, only: only, input: bufio.NewScanner(os.Stdin)}
	a.check("types", a.types)
	a.check("paging", a.paging)
	a.check("batches", a.batches)
	a.check("null_and_unset", a.nullAndUnset)
	a.check("schema_change", a.schemaChange)
	a.check("metadata", a.metadata)
	a.check("errors", a.errors)
	a.check("concurrency", a.concurrency)
	a.check("counters", a.counters)
	a.check("maps", a.maps)
	a.check("host_selection", a.hostSelection)
	a.check("extras", a.extras)
	a.check("keyspaces", a.keyspaces)
	a.check("large", a.large)
	a.check("rate_limits", a.rateLimits)
	a.check("restart", a.restart)
	return a.failed, nil
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: go-client HOST [--protocol N] [--compression NAME] [--check NAME]")
		os.Exit(2)
	}
	protocol, compression, only := 0, "", ""
	for i := 2; i+1 < len(os.Args); i += 2 {
		switch os.Args[i] {
		case "--protocol":
			protocol, _ = strconv.Atoi(os.Args[i+1])
		case "--compression":
			compression = os.Args[i+1]
		case "--check":
			only = os.Args[i+1]
		}
	}
	fmt.Println("driver", driverName)
	failed, err := run(os.Args[1], protocol, compression, only)
	if err != nil {
		fmt.Println("FAILED connect:", err)
	}
	if err != nil || failed > 0 {
		os.Exit(1)
	}
}
