//! Counts answers by time, and latencies by phase.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The width of a bucket of time.
pub const BUCKET: Duration = Duration::from_millis(100);

/// What became of a request.
#[derive(Clone, Copy, PartialEq)]
pub enum Outcome {
    /// Answered without an error, in time.
    Good,
    /// Answered without an error, too late.
    Late,
    /// Refused by a rate limit.
    Refused,
    /// Another error.
    Failed,
    /// Not sent: too late, or no stream was free.
    Unsent,
}

const OUTCOMES: [(&str, Outcome); 5] = [
    ("good", Outcome::Good),
    ("late", Outcome::Late),
    ("refused", Outcome::Refused),
    ("failed", Outcome::Failed),
    ("unsent", Outcome::Unsent),
];

type Counts = [u64; OUTCOMES.len()];

/// Latencies in microseconds, with a resolution of 3 %.
#[derive(Clone, Default)]
struct Latencies(Vec<u64>);

/// Latencies up to 2^6 us have a bucket each. Above, each power of two has 2^5 buckets.
const EXACT_BITS: u32 = 6;
const SUB_BITS: u32 = 5;

impl Latencies {
    fn bucket(micros: u64) -> usize {
        if micros < 1 << EXACT_BITS {
            return micros as usize;
        }
        let exponent = micros.ilog2();
        let sub = (micros >> (exponent - SUB_BITS)) as usize & ((1 << SUB_BITS) - 1);
        (1 << EXACT_BITS) + (((exponent - EXACT_BITS) as usize) << SUB_BITS) + sub
    }

    /// The lowest latency of a bucket.
    fn least(bucket: usize) -> u64 {
        let Some(above) = bucket.checked_sub(1 << EXACT_BITS) else { return bucket as u64 };
        let exponent = EXACT_BITS + (above >> SUB_BITS) as u32;
        (1 << exponent) + (((above & ((1 << SUB_BITS) - 1)) as u64) << (exponent - SUB_BITS))
    }

    fn add(&mut self, micros: u64) {
        let bucket = Latencies::bucket(micros);
        if bucket >= self.0.len() {
            self.0.resize(bucket + 1, 0);
        }
        self.0[bucket] += 1;
    }

    fn percentile(&self, share: f64) -> u64 {
        let rank = (self.0.iter().sum::<u64>() as f64 * share).ceil() as u64;
        let mut seen = 0;
        let at = self.0.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        Latencies::least(at.unwrap_or(0))
    }

    /// A JSON object: the number of requests by the lowest latency of their bucket.
    fn json(&self) -> String {
        let counts = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        let counts: Vec<String> =
            counts.map(|(bucket, count)| format!("\"{}\": {count}", Latencies::least(bucket))).collect();
        format!("{{{}}}", counts.join(", "))
    }
}

/// The results of some requests.
pub struct Tally {
    buckets: Vec<Counts>,
    /// By the phase in which a request was due.
    phases: Vec<(Counts, Latencies)>,
    /// Failures by the code of the error.
    codes: BTreeMap<i32, u64>,
    /// Reads without a row, and with a wrong value.
    pub missing: u64,
    pub corrupt: u64,
}

impl Tally {
    pub fn new(phases: usize) -> Tally {
        Tally {
            buckets: Vec::new(),
            phases: vec![Default::default(); phases],
            codes: BTreeMap::new(),
            missing: 0,
            corrupt: 0,
        }
    }

    /// Counts a request. `at`: since the start.
    pub fn count(&mut self, outcome: Outcome, phase: usize, at: Duration, latency: Duration) {
        let bucket = (at.as_millis() / BUCKET.as_millis()) as usize;
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, Counts::default());
        }
        self.buckets[bucket][outcome as usize] += 1;
        let (counts, latencies) = &mut self.phases[phase];
        counts[outcome as usize] += 1;
        if matches!(outcome, Outcome::Good | Outcome::Late) {
            latencies.add(latency.as_micros() as u64);
        }
    }

    pub fn error(&mut self, code: i32) {
        *self.codes.entry(code).or_default() += 1;
    }

    pub fn add(&mut self, other: Tally) {
        let sum = |into: &mut Counts, from: &Counts| into.iter_mut().zip(from).for_each(|(a, b)| *a += b);
        let len = self.buckets.len().max(other.buckets.len());
        self.buckets.resize(len, Counts::default());
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(into, from)| sum(into, from));
        for (into, from) in self.phases.iter_mut().zip(&other.phases) {
            sum(&mut into.0, &from.0);
            for (bucket, count) in from.1.0.iter().enumerate() {
                if bucket >= into.1.0.len() {
                    into.1.0.resize(bucket + 1, 0);
                }
                into.1.0[bucket] += count;
            }
        }
        for (code, count) in other.codes {
            *self.codes.entry(code).or_default() += count;
        }
        self.missing += other.missing;
        self.corrupt += other.corrupt;
    }

    /// The members of a JSON object. `spans`: the seconds of each phase.
    pub fn json(&self, spans: &[f64]) -> String {
        let mut out = format!("\"bucket_ms\": {}", BUCKET.as_millis());
        for (name, outcome) in OUTCOMES {
            let each: Vec<String> = self.buckets.iter().map(|counts| counts[outcome as usize].to_string()).collect();
            let _ = write!(out, ", \"{name}\": [{}]", each.join(", "));
        }
        let phase = |((counts, latencies), span): (&(Counts, Latencies), &f64)| {
            let each = OUTCOMES.map(|(name, outcome)| format!("\"{name}\": {}", counts[outcome as usize]));
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| latencies.percentile(share));
            format!(
                "{{\"seconds\": {span}, {}, \"latency_us\": {{\"p50\": {p50}, \"p99\": {p99}, \"p999\": {p999}}}, \
                 \"latencies\": {}}}",
                each.join(", "),
                latencies.json()
            )
        };
        let phases: Vec<String> = self.phases.iter().zip(spans).map(phase).collect();
        let codes: Vec<String> = self.codes.iter().map(|(code, count)| format!("\"{code:#06x}\": {count}")).collect();
        let _ = write!(
            out,
            ", \"phases\": [{}], \"codes\": {{{}}}, \"missing\": {}, \"corrupt\": {}",
            phases.join(", "),
            codes.join(", "),
            self.missing,
            self.corrupt
        );
        out
    }
}
