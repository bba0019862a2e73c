//! The histograms of partition sizes and cells. The bounds of their buckets grow by a fifth.

use crate::input::{Fault, Input, Parsed};

/// The number of bounds of the histogram of partition sizes.
pub const SIZE_BOUNDS: usize = 155;
/// The number of bounds of the histogram of cells.
pub const CELL_BOUNDS: usize = 118;
/// The most buckets that a file may have.
const MAX_BUCKETS: u32 = 1 << 16;

/// Counts of values by size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The upper bound of each bucket but the last, ascending.
    bounds: Vec<u64>,
    /// One more than bounds: the last counts values beyond all bounds.
    counts: Vec<u64>,
}

impl Histogram {
    /// An empty histogram with `bounds` bounds.
    pub fn new(bounds: usize) -> Self {
        let mut all = Vec::with_capacity(bounds);
        let mut last = 0u64;
        for _ in 0..bounds {
            last = if last == 0 { 1 } else { ((last as f64 * 1.2).round() as u64).max(last + 1) };
            all.push(last);
        }
        Histogram { bounds: all, counts: vec![0; bounds + 1] }
    }

    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        self.counts[bucket] += 1;
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// The approximate sum of the values.
    pub fn sum(&self) -> f64 {
        let top = self.bounds.last().copied().unwrap_or(0);
        self.counts
            .iter()
            .enumerate()
            .map(|(i, &count)| {
                let high = self.bounds.get(i).copied().unwrap_or(top);
                let low = if i == 0 { 0 } else { self.bounds[i - 1] + 1 };
                count as f64 * ((low.min(high) as f64 + high as f64) / 2.0)
            })
            .sum()
    }

    /// The bound that a `part` (0 to 1) of the values does not exceed. `None` if there are no
    /// values, or if it is beyond the last bound.
    pub fn quantile(&self, part: f64) -> Option<u64> {
        let wanted = ((self.count() as f64 * part).ceil() as u64).max(1);
        let mut sum = 0u64;
        let bucket = self.counts.iter().position(|&count| {
            sum = sum.saturating_add(count);
            sum >= wanted
        });
        self.bounds.get(bucket?).copied()
    }

    pub(crate) fn read(input: &mut Input<'_>) -> Parsed<Self> {
        let buckets = input.be32()?;
        if !(1..=MAX_BUCKETS).contains(&buckets) {
            return Err(Fault::Bad("the number of histogram buckets is not valid"));
        }
        let mut bounds = Vec::new();
        let mut counts = Vec::new();
        for i in 0..buckets {
            let (bound, count) = (input.be64()?, input.be64()?);
            // The first bound is stored twice.
            if i > 0 {
                if bounds.last().is_some_and(|&last| last >= bound) {
                    return Err(Fault::Bad("the histogram bounds are not in order"));
                }
                bounds.push(bound);
            }
            counts.push(count);
        }
        Ok(Histogram { bounds, counts })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.counts.len() as u32).to_be_bytes());
        for (i, count) in self.counts.iter().enumerate() {
            let bound = self.bounds.get(i.saturating_sub(1)).copied().unwrap_or(1);
            out.extend_from_slice(&bound.to_be_bytes());
            out.extend_from_slice(&count.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_in_the_first_bucket_that_holds_them() {
        let mut histogram = Histogram::new(SIZE_BOUNDS);
        assert_eq!(histogram.bounds[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        for value in [0, 1, 2, 11, u64::MAX] {
            histogram.add(value);
        }
        assert_eq!((histogram.counts[0], histogram.counts[1], histogram.counts[SIZE_BOUNDS]), (2, 1, 1));
        assert_eq!(histogram.count(), 5);
        let quantiles = [0.0, 0.4, 0.6, 0.8, 1.0].map(|part| histogram.quantile(part));
        assert_eq!(quantiles, [Some(1), Some(1), Some(2), Some(12), None]);
        assert_eq!(Histogram::new(4).quantile(0.5), None);
        let mut out = Vec::new();
        histogram.write(&mut out);
        assert_eq!(Histogram::read(&mut Input(&out)), Ok(histogram));
        assert!(Histogram::read(&mut Input(&out[..out.len() - 1])).is_err());
    }
}
