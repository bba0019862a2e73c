// Refusals by per-partition rate limits: each reaches the application as one error, and the driver does not send the request again.
package main

import (
	"fmt"
	"strings"
)

const (
	configError      = 0x2300
	mostUntilRefused = 1000
)

var kinds = [2]string{"read", "write"}

// counts are how many requests of each kind the nodes have refused.
type counts [2]int

// refusals asks for the counts of the nodes; it is false if the counts are not known.
func (a *app) refusals() (counts, bool, error) {
	var now counts
	answer, err := a.ask("refusals?")
	if err != nil || answer == "no" {
		return now, false, err
	}
	_, err = fmt.Sscan(answer, &now[0], &now[1])
	return now, true, err
}

// sentOnce checks that the nodes have refused what the application saw refused, and nothing else.
func (a *app) sentOnce(seen counts, what string) error {
	now, _, err := a.refusals()
	if err == nil && now != seen {
		err = fmt.Errorf("%s: the nodes refused %v, the application saw %v", what, now, seen)
	}
	return err
}

// touch is a read or a write of one partition.
func (a *app) touch(kind int, table string, pk int) *Query {
	if kind == 0 {
		return a.session.Query(fmt.Sprintf("SELECT v FROM %s WHERE pk = ?", table), pk)
	}
	return a.session.Query(fmt.Sprintf("INSERT INTO %s (pk, v) VALUES (?, 1)", table), pk)
}

// isRefusal checks that an error is the refusal of a request to a table with this limit.
func isRefusal(err error, kind int, table string, limit int) error {
	if codeOf(err) != configError {
		return fmt.Errorf("%s of %s: %v (code %#x)", kinds[kind], table, err, codeOf(err))
	}
	reached := fmt.Sprintf("Per-partition rate limit reached for %s in table %s.%s, rejected by ", kinds[kind], keyspace, table)
	if text := err.Error(); !strings.Contains(text, reached) || !strings.Contains(text, fmt.Sprintf("limit %d;", limit)) {
		return fmt.Errorf("%s of %s: %s", kinds[kind], table, text)
	}
	return nil
}

func (a *app) rateLimits() error {
	for table, limit := range map[string]int{"refusing": 0, "limited": 1} {
		option := fmt.Sprintf("{'max_reads_per_second': %d, 'max_writes_per_second': %d}", limit, limit)
		if err := a.exec("CREATE TABLE " + table + " (pk int PRIMARY KEY, v int) WITH per_partition_rate_limit = " + option); err != nil {
			return err
		}
	}
	seen, known, err := a.refusals()
	if err != nil {
		return err
	}
	if !known {
		fmt.Println("not run: rate_limits (the node is not ours)")
		return nil
	}
	for kind, name := range kinds {
		for _, idempotent := range []bool{false, true} {
			err := a.touch(kind, "refusing", 1).Idempotent(idempotent).Exec()
			if err := isRefusal(err, kind, "refusing", 0); err != nil {
				return err
			}
			seen[kind]++
			if err := a.sentOnce(seen, fmt.Sprintf("%s, idempotent: %v", name, idempotent)); err != nil {
				return err
			}
		}
	}
	err = batch(a.session, UnloggedBatch, []statement{{"INSERT INTO refusing (pk, v) VALUES (?, ?)", []any{2, 2}}})
	if err := isRefusal(err, 1, "refusing", 0); err != nil {
		return fmt.Errorf("batch: %w", err)
	}
	seen[1]++
	if err := a.sentOnce(seen, "batch"); err != nil {
		return err
	}
	if err := a.retried(&seen); err != nil {
		return err
	}
	for kind, name := range kinds {
		var err error
		for n := 0; err == nil && n < mostUntilRefused; n++ {
			err = a.touch(kind, "limited", 1).Exec()
		}
		if err := isRefusal(err, kind, "limited", 1); err != nil {
			return err
		}
		seen[kind]++
		if err := a.touch(kind, "limited", 2).Exec(); err != nil {
			return fmt.Errorf("%s of another partition: %w", name, err)
		}
		if err := a.sentOnce(seen, name+" until refused"); err != nil {
			return err
		}
	}
	return nil
}

// retried has a retry policy. Those of the driver retry every error, on each of the next hosts. A policy of the application can leave out refusals.
func (a *app) retried(seen *counts) error {
	const times = 2
	var others int
	if err := a.session.Query("SELECT count(*) FROM system.peers").Scan(&others); err != nil {
		return err
	}
	err := a.touch(0, "refusing", 1).Idempotent(true).RetryPolicy(patiently(times)).Exec()
	if err := isRefusal(err, 0, "refusing", 0); err != nil {
		return err
	}
	seen[0]++
	if err := a.sentOnce(*seen, "with a policy of the application"); err != nil {
		return err
	}
	err = a.touch(0, "refusing", 1).Idempotent(true).RetryPolicy(retrying(times)).Exec()
	if err := isRefusal(err, 0, "refusing", 0); err != nil {
		return err
	}
	seen[0] += 1 + min(times, others)
	return a.sentOnce(*seen, "with a policy of the driver")
}
