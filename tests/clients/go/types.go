// Every type as a value of the driver and back: extremes, empty collections, nesting.
package main

import (
	"fmt"
	"math"
	"math/big"
	"net"
	"reflect"
	"strings"
	"time"

	"gopkg.in/inf.v0"
)

type point struct {
	X int    `cql:"x"`
	Y string `cql:"y"`
}

// shown is a value as text: the same text for the same value.
func shown(value any) string {
	switch it := value.(type) {
	case *big.Int:
		return it.String()
	case *inf.Dec:
		return it.String()
	case big.Int:
		return it.String()
	case inf.Dec:
		return it.String()
	case time.Time:
		return it.UTC().Format(time.RFC3339Nano)
	case net.IP:
		return it.String()
	case []byte:
		return fmt.Sprintf("%x", it)
	}
	return fmt.Sprintf("%v", value)
}

// into is a new variable of the type of a value.
func into(value any) any { return reflect.New(reflect.TypeOf(value)).Interface() }

func (a *app) types() error {
	uuid, err := parseUUID("d2177dd0-eaa2-11de-a572-001b779c76e3")
	if err != nil {
		return err
	}
	huge, _ := new(big.Int).SetString("-123456789012345678901234567890123456789", 10)
	cases := []struct {
		cql    string
		values []any
	}{
		{"ascii", []any{"", "plain ~"}},
		{"text", []any{"", "häßlich 漢字 🦀", strings.Repeat("long ", 20000)}},
		{"blob", []any{[]byte{}, []byte{0, 1, 255}}},
		{"boolean", []any{true, false}},
		{"tinyint", []any{int8(-128), int8(127)}},
		{"smallint", []any{int16(-32768), int16(32767)}},
		{"int", []any{int(math.MinInt32), -1, int(math.MaxInt32)}},
		{"bigint", []any{int64(math.MinInt64), int64(math.MaxInt64)}},
		{"varint", []any{big.NewInt(0), big.NewInt(-129), huge}},
		{"decimal", []any{inf.NewDec(-12345678900, 6), inf.NewDec(0, 0), inf.NewDecBig(huge, 30)}},
		{"float", []any{float32(1.5), float32(math.Inf(1)), float32(-0.25)}},
		{"double", []any{math.MaxFloat64, 1e-300, math.Inf(-1)}},
		{"timestamp", []any{time.UnixMilli(1_700_000_000_123), time.UnixMilli(-1)}},
		{"date", []any{time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC), time.Date(1601, 1, 1, 0, 0, 0, 0, time.UTC)}},
		{"time", []any{time.Duration(0), 24*time.Hour - 1}},
		{"duration", []any{Duration{Months: 1, Days: 2, Nanoseconds: 3}, Duration{Months: -14, Days: -1, Nanoseconds: -5_000_000_000}}},
		{"uuid", []any{uuid}},
		{"timeuuid", []any{uuid}},
		{"inet", []any{net.ParseIP("255.1.2.3"), net.ParseIP("2001:db8::8a2e:370:7334")}},
		{"list<int>", []any{[]int{3, 1, 3}}},
		{"set<text>", []any{[]string{"a", "b"}}},
		{"map<int, text>", []any{map[int]string{-1: "minus", 1: "one"}}},
		{"frozen<list<text>>", []any{[]string{}, []string{"a", ""}}},
		{"frozen<map<text, frozen<set<int>>>>", []any{map[string][]int{"k": {1, 2}}}},
		{"map<text, frozen<list<frozen<set<int>>>>>", []any{map[string][][]int{"k": {{1, 2}, {3}}}}},
		{"point", []any{point{1, "y"}}},
		{"frozen<point>", []any{point{-5, ""}}},
		{"list<frozen<point>>", []any{[]point{{1, "one"}, {2, "two"}}}},
		{"map<text, frozen<point>>", []any{map[string]point{"a": {7, "seven"}}}},
	}
	if hasVectors {
		cases = append(cases, struct {
			cql    string
			values []any
		}{"vector<float, 3>", []any{[]float32{1, -2.5, 0}}})
	}
	if err := a.exec("CREATE TYPE point (x int, y text)"); err != nil {
		return err
	}
	var wrong []string
	for number, one := range cases {
		table := fmt.Sprintf("type_%d", number)
		if err := a.exec(fmt.Sprintf("CREATE TABLE %s (pk int PRIMARY KEY, v %s)", table, one.cql)); err != nil {
			return err
		}
		for pk, value := range one.values {
			if err := a.exec(fmt.Sprintf("INSERT INTO %s (pk, v) VALUES (?, ?)", table), pk, value); err != nil {
				return fmt.Errorf("%s: %w", one.cql, err)
			}
			// With the key bound, and with the key in the text (these drivers prepare both).
			for _, query := range []*Query{
				a.session.Query(fmt.Sprintf("SELECT v FROM %s WHERE pk = ?", table), pk),
				a.session.Query(fmt.Sprintf("SELECT v FROM %s WHERE pk = %d", table, pk)),
			} {
				seen := into(value)
				if err := query.Scan(seen); err != nil {
					return fmt.Errorf("%s: %w", one.cql, err)
				}
				if got, want := shown(reflect.ValueOf(seen).Elem().Interface()), shown(value); got != want {
					wrong = append(wrong, fmt.Sprintf("%s: sent %.80s, got %.80s", one.cql, want, got))
				}
			}
		}
		var missing any
		if err := a.session.Query(fmt.Sprintf("SELECT pk FROM %s WHERE pk = -1", table)).Scan(&missing); !isNotFound(err) {
			return fmt.Errorf("%s: a key that was never written: %v", one.cql, err)
		}
	}
	if err := a.tuples(); err != nil {
		return err
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s", strings.Join(wrong, "; "))
	}
	return nil
}

// tuples are bound and read as a value for each element.
func (a *app) tuples() error {
	if err := a.exec("CREATE TABLE tuples (pk int PRIMARY KEY, v tuple<int, text, frozen<list<int>>>)"); err != nil {
		return err
	}
	if err := a.exec("INSERT INTO tuples (pk, v) VALUES (?, (?, ?, ?))", 1, 5, "five", []int{1, 2}); err != nil {
		return err
	}
	var number int
	var text string
	var list []int
	if err := a.session.Query("SELECT v FROM tuples WHERE pk = ?", 1).Scan(&number, &text, &list); err != nil {
		return err
	}
	if got := fmt.Sprint(number, text, list); got != "5five[1 2]" && got != "5 five [1 2]" {
		return fmt.Errorf("a tuple came back as %s", got)
	}
	return nil
}
