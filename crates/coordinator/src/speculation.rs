//! Speculative retry: when to ask one more replica although the asked replicas may still respond.
//! Pure.
//!
//! The table option `speculative_retry` decides: after a percentile of the table's read times,
//! after a fixed time, at once, or never. Read times are kept in a histogram. Its counts are halved
//! periodically, so percentiles cover recent reads.

use rt::time::Duration;

/// The parsed table option `speculative_retry`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Speculation {
    /// Never.
    None,
    /// At once.
    Always,
    /// After this time.
    After(Duration),
    /// After the time within which this share of reads completed, 0 to 1.
    Percentile(f64),
}

impl Speculation {
    /// Parses the option's stored text. Text that is not understood gives the default: the option
    /// was validated when it was set.
    pub fn parse(text: &str) -> Speculation {
        let lower = text.trim().to_ascii_lowercase();
        let number = |digits: &str| digits.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
        match lower.as_str() {
            "none" | "never" => return Speculation::None,
            "always" => return Speculation::Always,
            _ => {}
        }
        if let Some(millis) = lower.strip_suffix("ms").and_then(number) {
            return Speculation::After(Duration::from_micros((millis * 1000.0) as u64));
        }
        let percent = lower.strip_suffix("percentile").or_else(|| lower.strip_suffix('p')).and_then(number);
        Speculation::Percentile(percent.map_or(0.99, |percent| (percent / 100.0).min(1.0)))
    }

    /// The speculative-retry delay: how long to wait before asking one more replica. None: for
    /// ever.
    pub fn retry_delay(self, times: &Histogram) -> Option<Duration> {
        match self {
            Speculation::None => None,
            Speculation::Always => Some(Duration::ZERO),
            Speculation::After(time) => Some(time),
            Speculation::Percentile(share) => Some(times.percentile(share).unwrap_or(DEFAULT_DELAY).max(MIN_DELAY)),
        }
    }
}

/// The delay by percentile while too few reads were counted.
const DEFAULT_DELAY: Duration = Duration::from_millis(10);
/// The least delay by percentile: below it, a second request costs more than it saves.
const MIN_DELAY: Duration = Duration::from_micros(500);
/// The reads that must be counted before a percentile is used.
const ENOUGH: u32 = 50;
/// The number of reads at which all counts are halved.
const FORGET_AT: u32 = 4096;
/// Four buckets for each doubling of the time, from 16 us to more than a minute.
const BUCKETS: usize = 4 * 22;

/// A histogram of read times, in which old times fade.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    counts: Box<[u32; BUCKETS]>,
    total: u32,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: Box::new([0; BUCKETS]), total: 0 }
    }
}

fn bucket(time: Duration) -> usize {
    let units = (time.as_micros() as u64 / 4).max(4);
    let doubling = units.ilog2();
    let quarter = (units >> (doubling - 2)) & 3;
    ((doubling as usize - 2) * 4 + quarter as usize).min(BUCKETS - 1)
}

/// The upper bound of a bucket.
fn bound(bucket: usize) -> Duration {
    let (doubling, quarter) = (bucket / 4, bucket % 4);
    Duration::from_micros((4 * (5 + quarter as u64)) << doubling)
}

impl Histogram {
    /// Counts a read.
    pub fn add(&mut self, time: Duration) {
        self.counts[bucket(time)] += 1;
        self.total += 1;
        if self.total >= FORGET_AT {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
    }

    /// The time within which this share of reads completed. None while too few were counted.
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        if self.total < ENOUGH {
            return None;
        }
        let wanted = (f64::from(self.total) * share).ceil().max(1.0) as u32;
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        found.map(bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_as_they_are_stored() {
        let cases = [
            ("99.0PERCENTILE", Speculation::Percentile(0.99)),
            ("50p", Speculation::Percentile(0.5)),
            ("100PERCENTILE", Speculation::Percentile(1.0)),
            ("10.00ms", Speculation::After(Duration::from_millis(10))),
            ("NONE", Speculation::None),
            ("ALWAYS", Speculation::Always),
            ("", Speculation::Percentile(0.99)),
        ];
        for (text, expected) in cases {
            assert_eq!(Speculation::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn buckets_hold_their_times() {
        for micros in [0, 1, 15, 16, 19, 20, 100, 999, 1_000, 31_999, 1_000_000, 30_000_000] {
            let time = Duration::from_micros(micros);
            let bucket = bucket(time);
            assert!(time <= bound(bucket), "{time:?} in bucket {bucket} up to {:?}", bound(bucket));
            assert!(bucket == 0 || bound(bucket - 1) <= time, "{time:?} is not in an earlier one");
        }
        assert_eq!(bucket(Duration::from_secs(100_000)), BUCKETS - 1);
    }

    #[test]
    fn percentiles_follow_recent_times() {
        let mut times = Histogram::default();
        assert_eq!(Speculation::Percentile(0.99).retry_delay(&times), Some(DEFAULT_DELAY));
        for i in 0..1000u64 {
            times.add(Duration::from_micros(if i % 50 == 0 { 50_000 } else { 1_000 }));
        }
        let near = |share: f64, micros: u64| {
            let found = times.percentile(share).expect("reads enough").as_micros() as u64;
            assert!((micros..=micros * 5 / 4 + 4).contains(&found), "{share}: {found}");
        };
        near(0.5, 1_000);
        near(0.99, 50_000);
        for _ in 0..40_000 {
            times.add(Duration::from_micros(100));
        }
        assert!(
            times.percentile(0.99).expect("reads enough") < Duration::from_micros(200),
            "the old ones are forgotten"
        );
        assert_eq!(Speculation::None.retry_delay(&times), None);
        assert_eq!(Speculation::Always.retry_delay(&times), Some(Duration::ZERO));
        assert_eq!(Speculation::Percentile(0.5).retry_delay(&times), Some(MIN_DELAY));
    }
}
