//! What a run counts, and its report.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// A report: one JSON object, its members in the order of insertion.
pub type Report = Map<String, Value>;

/// Longer latencies count as this one, in microseconds.
const LONGEST_US: u64 = 600_000_000;

/// How many different errors a report names, and how much of each text.
const ERROR_KINDS: usize = 8;
const ERROR_CHARS: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Read,
    Write,
}

/// The result of one successful request.
#[derive(Default)]
pub struct Outcome {
    pub rows: u64,
    /// Bytes of values.
    pub bytes: u64,
    /// Rows with another content than was written.
    pub corrupt: u64,
    /// Rows that were written and not found.
    pub missing: u64,
    /// The item needs more requests: it has more pages.
    pub more: bool,
}

/// Requests, rows and latencies.
pub struct Tally {
    reads: Histogram<u64>,
    writes: Histogram<u64>,
    ops: u64,
    rows: u64,
    bytes: u64,
    corrupt: u64,
    missing: u64,
    errors: u64,
    kinds: BTreeMap<String, u64>,
}

impl Tally {
    pub fn new() -> Self {
        let latencies = || Histogram::new_with_bounds(1, LONGEST_US, 3).expect("the bounds are valid");
        Tally {
            reads: latencies(),
            writes: latencies(),
            ops: 0,
            rows: 0,
            bytes: 0,
            corrupt: 0,
            missing: 0,
            errors: 0,
            kinds: BTreeMap::new(),
        }
    }

    pub fn ops(&self) -> u64 {
        self.ops
    }

    pub fn success(&mut self, kind: Kind, latency: Duration, outcome: &Outcome) {
        let latencies = match kind {
            Kind::Read => &mut self.reads,
            Kind::Write => &mut self.writes,
        };
        latencies.saturating_record(latency.as_micros().clamp(1, u128::from(LONGEST_US)) as u64);
        self.ops += 1;
        self.rows += outcome.rows;
        self.bytes += outcome.bytes;
        self.corrupt += outcome.corrupt;
        self.missing += outcome.missing;
    }

    pub fn failure(&mut self, error: &str) {
        self.errors += 1;
        let kind: String = error.chars().take(ERROR_CHARS).collect();
        if let Some(count) = self.kinds.get_mut(&kind) {
            *count += 1;
        } else if self.kinds.len() < ERROR_KINDS {
            self.kinds.insert(kind, 1);
        }
    }

    pub fn missing(&mut self, rows: u64) {
        self.missing += rows;
    }

    /// Adds the counts of `seconds` to a report.
    pub fn report(&self, seconds: f64, report: &mut Report) {
        let rate = |count: u64| rounded(count as f64 / seconds, 1);
        let mut all = self.reads.clone();
        all.add(&self.writes).expect("both have the same bounds");
        let mut add = |name: &str, value: Value| report.insert(name.into(), value);
        add("seconds", json!(rounded(seconds, 3)));
        add("ops", json!(self.ops));
        add("ops_per_s", json!(rate(self.ops)));
        add("rows", json!(self.rows));
        add("rows_per_s", json!(rate(self.rows)));
        add("value_mb_per_s", json!(rounded(self.bytes as f64 / seconds / 1e6, 2)));
        add("latency_us", percentiles(&all));
        if !self.reads.is_empty() && !self.writes.is_empty() {
            add("read_latency_us", percentiles(&self.reads));
            add("write_latency_us", percentiles(&self.writes));
        }
        add("errors", json!(self.errors));
        add("error_kinds", json!(self.kinds));
        add("corrupt", json!(self.corrupt));
        add("missing", json!(self.missing));
    }
}

fn percentiles(latencies: &Histogram<u64>) -> Value {
    let at = |quantile| latencies.value_at_quantile(quantile);
    json!({
        "mean": rounded(latencies.mean(), 1), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999),
        "max": latencies.max(),
    })
}

/// `value` with so many digits after the point.
pub fn rounded(value: f64, digits: i32) -> f64 {
    let unit = 10f64.powi(digits);
    (value * unit).round() / unit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(latencies_us: impl Iterator<Item = u64>) -> Tally {
        let mut tally = Tally::new();
        for us in latencies_us {
            let outcome = Outcome { rows: 2, bytes: 500, ..Outcome::default() };
            tally.success(Kind::Read, Duration::from_micros(us), &outcome);
        }
        tally
    }

    fn report(tally: &Tally) -> Report {
        let mut report = Report::new();
        tally.report(2.0, &mut report);
        report
    }

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let report = report(&tally(1..=100_000));
        for (name, exact) in [("p50", 50_000.0), ("p90", 90_000.0), ("p99", 99_000.0), ("p999", 99_900.0)] {
            let got = report["latency_us"][name].as_f64().unwrap();
            assert!((got / exact - 1.0).abs() <= 0.001, "{name}: {got}");
        }
        assert_eq!(report["ops"], 100_000);
        assert_eq!(report["ops_per_s"], 50_000.0);
        assert_eq!(report["rows_per_s"], 100_000.0);
        assert_eq!(report["value_mb_per_s"], 25.0);
        assert!(!report.contains_key("read_latency_us"), "the writes would be empty");
    }

    #[test]
    fn latencies_beyond_the_bounds_are_kept() {
        let report = report(&tally([0, 10_000_000_000].into_iter()));
        assert_eq!(report["latency_us"]["p50"], 1);
        let max = report["latency_us"]["max"].as_u64().unwrap();
        assert!((LONGEST_US..LONGEST_US + LONGEST_US / 1000).contains(&max), "{max}");
    }

    #[test]
    fn reads_and_writes_are_reported_apart() {
        let mut tally = tally([1000].into_iter());
        tally.success(Kind::Write, Duration::from_micros(10), &Outcome::default());
        let report = report(&tally);
        assert_eq!(report["read_latency_us"]["max"], 1000);
        assert_eq!(report["write_latency_us"]["max"], 10);
        assert_eq!(report["latency_us"]["mean"], 505.0);
    }

    #[test]
    fn errors_are_counted_even_when_not_named() {
        let mut tally = Tally::new();
        for n in 0..20 {
            tally.failure(&format!("error {n}"));
        }
        tally.failure("error 3");
        tally.missing(4);
        let report = report(&tally);
        assert_eq!((&report["errors"], &report["missing"]), (&json!(21), &json!(4)));
        assert_eq!(report["error_kinds"].as_object().unwrap().len(), ERROR_KINDS);
        assert_eq!(report["error_kinds"]["error 3"], 2);
    }
}
