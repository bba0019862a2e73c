// What applications ask of a request besides its rows in order: maps of columns, policies, traces, payloads, deadlines, keyspaces, large results.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// maps reads rows as maps by column name, as slices of maps, through a scanner, and with user-defined types as maps.
func (a *app) maps() error {
	if err := a.execAll(
		"CREATE TYPE place (street text, numbers frozen<set<int>>)",
		"CREATE TABLE mapped (pk int, ck text, n bigint, tags set<text>, counts map<text, int>, home frozen<place>, homes list<frozen<place>>, pair frozen<tuple<int, text>>, nothing text, PRIMARY KEY (pk, ck))",
	); err != nil {
		return err
	}
	home := map[string]any{"street": "Main", "numbers": []int{1, 2}}
	for ck := 0; ck < 25; ck++ {
		if err := a.exec("INSERT INTO mapped (pk, ck, n, tags, counts, home, homes, pair) VALUES (?, ?, ?, ?, ?, ?, ?, (?, ?))",
			1, fmt.Sprintf("%02d", ck), int64(ck), []string{"x", "y"}, map[string]int{"k": ck}, home, []map[string]any{home}, ck, "two"); err != nil {
			return err
		}
	}
	row := map[string]any{}
	if err := a.session.Query("SELECT * FROM mapped WHERE pk = ? AND ck = ?", 1, "07").MapScan(row); err != nil {
		return err
	}
	got := fmt.Sprintf("%v %v %v %v %v %v %q", row["n"], row["tags"], row["counts"], row["home"], row["pair[0]"], row["pair[1]"], row["nothing"])
	if want := `7 [x y] map[k:7] map[numbers:[1 2] street:Main] 7 two ""`; got != want {
		return fmt.Errorf("a row as a map: %s, not %s", got, want)
	}
	all, err := a.session.Query("SELECT ck, n FROM mapped WHERE pk = ?", 1).PageSize(10).Iter().SliceMap()
	if err != nil || len(all) != 25 || all[24]["ck"] != "24" || all[24]["n"] != int64(24) {
		return fmt.Errorf("rows as maps: %d, %v", len(all), err)
	}
	scanner := a.session.Query("SELECT ck, n, n AS again FROM mapped WHERE pk = ?", 1).PageSize(4).Iter().Scanner()
	seen := 0
	for ; scanner.Next(); seen++ {
		var ck string
		var n, again int64
		if err := scanner.Scan(&ck, &n, &again); err != nil {
			return err
		}
		if ck != fmt.Sprintf("%02d", seen) || n != int64(seen) || again != n {
			return fmt.Errorf("scanned %s %d %d at %d", ck, n, again, seen)
		}
	}
	if err := scanner.Err(); err != nil || seen != 25 {
		return fmt.Errorf("scanned %d rows: %v", seen, err)
	}
	iter := a.session.Query("SELECT n, ttl(n), writetime(n), count(*), token(pk), toJson(tags) FROM mapped WHERE pk = ? AND ck = '03'", 1).Iter()
	data, err := iter.RowData()
	if err != nil {
		return err
	}
	if names := strings.Join(data.Columns, " "); !iter.Scan(data.Values...) || len(data.Columns) != 6 || data.Columns[0] != "n" {
		return fmt.Errorf("columns %s: %v", names, iter.Close())
	}
	return iter.Close()
}

// hostSelection reads and writes through every policy of the driver.
func (a *app) hostSelection() error {
	if err := a.exec("CREATE TABLE selected (pk int PRIMARY KEY, v int)"); err != nil {
		return err
	}
	for name, policy := range policies() {
		cluster := *a.cluster
		cluster.PoolConfig.HostSelectionPolicy = policy
		cluster.NumConns = 3
		session, err := cluster.CreateSession()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for pk := 0; pk < 50; pk++ {
			var v int
			err := session.Query("INSERT INTO selected (pk, v) VALUES (?, ?)", pk, pk).Exec()
			if err == nil {
				err = session.Query("SELECT v FROM selected WHERE pk = ?", pk).Scan(&v)
			}
			if err != nil || v != pk {
				session.Close()
				return fmt.Errorf("%s: %d at %d: %w", name, v, pk, err)
			}
		}
		session.Close()
	}
	return nil
}

// extras are what goes along with a request.
func (a *app) extras() error {
	if err := a.exec("CREATE TABLE extras (pk int PRIMARY KEY, v text)"); err != nil {
		return err
	}
	if !a.third {
		if err := a.payloads(); err != nil {
			return err
		}
	}
	if err := a.exec("INSERT INTO extras (pk, v) VALUES (?, ?)", 1, "x"); err != nil {
		return err
	}
	var trace bytes.Buffer
	for _, query := range []*Query{
		a.session.Query("SELECT v FROM extras WHERE pk = ?", 1),
		a.session.Query("INSERT INTO extras (pk, v) VALUES (2, 'y')"),
		a.session.Query("SELECT count(*) FROM extras"),
	} {
		trace.Reset()
		if err := query.Trace(traceInto(a.session, &trace)).Exec(); err != nil {
			return fmt.Errorf("traced: %w", err)
		}
		if text := trace.String(); !strings.Contains(text, "Tracing session") || strings.Contains(text, "Error") {
			return fmt.Errorf("a trace: %.300s", text)
		}
	}
	var v string
	// Where there is no other node to ask, these drivers take that for the answer: so not before the first one may have answered.
	eager := a.session.Query("SELECT v FROM extras WHERE pk = ?", 1).Idempotent(true).SetSpeculativeExecutionPolicy(speculative(1, 20*time.Second))
	if err := eager.Scan(&v); err != nil || v != "x" {
		return fmt.Errorf("speculatively: %q %w", v, err)
	}
	var written int64
	if err := a.session.Query("INSERT INTO extras (pk, v) VALUES (:key, :value)", named("key", 3), named("value", "named")).WithTimestamp(1234567).Exec(); err != nil {
		return fmt.Errorf("named values: %w", err)
	}
	if err := a.session.Query("SELECT v, writetime(v) FROM extras WHERE pk = :key", named("key", 3)).Scan(&v, &written); err != nil || v != "named" || written != 1234567 {
		return fmt.Errorf("named values: %q written at %d: %w", v, written, err)
	}
	// A deadline that has passed costs only its own request.
	past, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	if err := a.session.Query("SELECT v FROM extras WHERE pk = 1").WithContext(past).Scan(&v); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("after its deadline: %v", err)
	}
	ahead, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := a.session.AwaitSchemaAgreement(ahead); err != nil {
		return fmt.Errorf("schema agreement: %w", err)
	}
	return a.session.Query("SELECT v FROM extras WHERE pk = 1").WithContext(ahead).Scan(&v)
}

// payloads of the application are taken, warnings of the node are handed on.
func (a *app) payloads() error {
	payload := map[string][]byte{"application-key": {1, 2, 3}}
	if err := a.session.Query("INSERT INTO extras (pk, v) VALUES (?, ?)", 1, "payload").CustomPayload(payload).Exec(); err != nil {
		return fmt.Errorf("with a payload: %w", err)
	}
	if err := a.exec("DROP KEYSPACE IF EXISTS go_warned"); err != nil {
		return err
	}
	iter := a.session.Query("CREATE KEYSPACE go_warned WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}").Iter()
	warnings := iter.Warnings()
	if err := iter.Close(); err != nil || len(warnings) == 0 {
		return fmt.Errorf("no warning of the replication factor: %v", err)
	}
	return a.exec("DROP KEYSPACE go_warned")
}

// large reads a result of many megabytes and writes a value of some.
func (a *app) large() error {
	if err := a.exec("CREATE TABLE large (pk int, ck int, v blob, PRIMARY KEY (pk, ck))"); err != nil {
		return err
	}
	value := bytes.Repeat([]byte{7}, 1<<20)
	const rows = 12
	for ck := 0; ck < rows; ck++ {
		if err := a.exec("INSERT INTO large (pk, ck, v) VALUES (1, ?, ?)", ck, value); err != nil {
			return err
		}
	}
	iter := a.session.Query("SELECT v FROM large WHERE pk = 1").Iter()
	var got []byte
	seen := 0
	for ; iter.Scan(&got); seen++ {
		if !bytes.Equal(got, value) {
			return fmt.Errorf("row %d has %d bytes", seen, len(got))
		}
	}
	if err := iter.Close(); err != nil || seen != rows {
		return fmt.Errorf("%d rows: %v", seen, err)
	}
	for ck := 0; ck < 20000; ck += 100 {
		statements := make([]statement, 0, 100)
		for n := ck; n < ck+100; n++ {
			statements = append(statements, statement{"INSERT INTO large (pk, ck, v) VALUES (2, ?, 0x00)", []any{n}})
		}
		if err := batch(a.session, UnloggedBatch, statements); err != nil {
			return err
		}
	}
	many, err := a.ints(a.session.Query("SELECT ck FROM large WHERE pk = 2").Prefetch(0.5))
	if err != nil {
		return err
	}
	if len(many) != 20000 || many[19999] != 19999 {
		return fmt.Errorf("%d rows of 20,000", len(many))
	}
	return nil
}

// keyspaces reads a table of the same name in two of them: by name, by the session's keyspace and, with version 5 of the protocol, by the request's.
func (a *app) keyspaces() error {
	const other = "go_other"
	if err := a.execAll(
		"DROP KEYSPACE IF EXISTS "+other,
		"CREATE KEYSPACE "+other+" WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}",
		"CREATE TABLE placed (pk int PRIMARY KEY, v text)", "CREATE TABLE "+other+".placed (pk int PRIMARY KEY, v text)",
		"INSERT INTO placed (pk, v) VALUES (1, 'first')", "INSERT INTO "+other+".placed (pk, v) VALUES (1, 'other')",
	); err != nil {
		return err
	}
	cluster := *a.cluster
	cluster.Keyspace = other
	session, err := cluster.CreateSession()
	if err != nil {
		return err
	}
	defer session.Close()
	const read = "SELECT v FROM placed WHERE pk = 1"
	for query, want := range map[*Query]string{
		a.session.Query(read): "first", session.Query(read): "other", session.Query("SELECT v FROM " + keyspace + ".placed WHERE pk = 1"): "first",
		inKeyspace(a, a.session.Query(read), other): "other", inKeyspace(a, session.Query(read), keyspace): "first",
	} {
		if query == nil {
			continue // the driver or the version has no keyspaces of requests
		}
		var v string
		if err := query.Scan(&v); err != nil || v != want {
			return fmt.Errorf("%q instead of %q: %v", v, want, err)
		}
	}
	return a.exec("DROP KEYSPACE " + other)
}
