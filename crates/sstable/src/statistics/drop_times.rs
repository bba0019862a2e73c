//! The times of tombstones and expiries: at most 100 bins of seconds, from which the droppable part
//! is estimated.

use crate::input::{Fault, Input, Parsed};
use model::time::{NO_DELETION_TIME, Seconds};

const MAX_BINS: usize = 100;
/// Times are rounded up to a multiple of this.
const ROUND: i64 = 60;
/// The most bins that a file may have.
const MAX_FILE_BINS: u32 = 1 << 20;

/// (seconds, count) by time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DropTimes {
    bins: Vec<(f64, u64)>,
}

impl DropTimes {
    /// Counts a deletion time or expiry. [`NO_DELETION_TIME`] is not counted.
    pub fn add(&mut self, at: Seconds) {
        if at == NO_DELETION_TIME {
            return;
        }
        let rounded = (at as i64 + ROUND - 1).div_euclid(ROUND) * ROUND;
        let time = rounded.min(NO_DELETION_TIME as i64) as f64;
        let place = self.bins.partition_point(|&(bin, _)| bin < time);
        match self.bins.get_mut(place) {
            Some((bin, count)) if *bin == time => *count += 1,
            _ => {
                self.bins.insert(place, (time, 1));
                if self.bins.len() > MAX_BINS {
                    self.merge_nearest();
                }
            }
        }
    }

    fn merge_nearest(&mut self) {
        let gap = |i: usize| self.bins[i + 1].0 - self.bins[i].0;
        let nearest = (0..self.bins.len() - 1).min_by(|&a, &b| gap(a).total_cmp(&gap(b))).unwrap_or(0);
        let (time, count) = self.bins.remove(nearest + 1);
        let (kept, kept_count) = self.bins[nearest];
        let sum = count + kept_count;
        self.bins[nearest] = (((time * count as f64 + kept * kept_count as f64) / sum as f64).round(), sum);
    }

    /// The estimated number of times before this second.
    pub fn before(&self, at: Seconds) -> f64 {
        self.bins.iter().take_while(|&&(time, _)| time < at as f64).map(|&(_, count)| count as f64).sum()
    }

    /// The seconds and their counts, by time.
    pub fn bins(&self) -> &[(f64, u64)] {
        &self.bins
    }

    /// The number of times counted.
    pub fn count(&self) -> u64 {
        self.bins.iter().fold(0, |sum, &(_, count)| sum.saturating_add(count))
    }

    pub(crate) fn read(input: &mut Input<'_>) -> Parsed<Self> {
        input.be32()?;
        let count = input.be32()?;
        if count > MAX_FILE_BINS {
            return Err(Fault::Bad("there are too many tombstone drop times"));
        }
        let mut bins = Vec::new();
        for _ in 0..count {
            bins.push((input.f64()?, input.be64()?));
        }
        Ok(DropTimes { bins })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let len = (self.bins.len() as u32).to_be_bytes();
        out.extend_from_slice(&len);
        out.extend_from_slice(&len);
        for (time, count) in &self.bins {
            out.extend_from_slice(&time.to_be_bytes());
            out.extend_from_slice(&count.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_stay_few_and_lose_nothing() {
        let mut times = DropTimes::default();
        for n in 0..1000 {
            times.add(n * 61);
        }
        times.add(NO_DELETION_TIME);
        assert_eq!((times.bins.len(), times.count()), (MAX_BINS, 1000));
        assert!(times.bins.is_sorted_by(|a, b| a.0 < b.0));
        assert!((times.before(500 * 61) - 500.0).abs() < 30.0);
        assert_eq!(times.before(NO_DELETION_TIME), 1000.0);
        let mut out = Vec::new();
        times.write(&mut out);
        assert_eq!(DropTimes::read(&mut Input(&out)), Ok(times));
    }
}
