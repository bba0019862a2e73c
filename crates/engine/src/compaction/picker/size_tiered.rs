//! Size-tiered compaction: sstables of similar size form a bucket. The bucket with the most
//! sstables is merged, if it has at least `min_threshold`.

use super::{Candidate, Pick};
use crate::compaction::options::SizeTiered;

pub(super) fn pick(candidates: &[Candidate], options: &SizeTiered) -> Option<Pick> {
    let free = (0..candidates.len()).filter(|i| !candidates[*i].busy).collect();
    pick_among(candidates, free, options)
}

/// The merge to run among `among`, which are indexes of candidates.
pub(super) fn pick_among(candidates: &[Candidate], among: Vec<usize>, options: &SizeTiered) -> Option<Pick> {
    let mut best: Option<Bucket> = None;
    for mut bucket in buckets(candidates, among, options) {
        if bucket.members.len() < options.min_threshold {
            continue;
        }
        // The smallest sstables come first: they cost least, and reduce the count as much as
        // others.
        bucket.members.truncate(options.max_threshold);
        if best.as_ref().is_none_or(|best| best.members.len() < bucket.members.len()) {
            best = Some(bucket);
        }
    }
    best.map(|bucket| Pick::new(bucket.members))
}

/// Each byte is rewritten once for each tier between its sstable's size and the total size.
pub(super) fn backlog(sizes: impl Iterator<Item = u64> + Clone, options: &SizeTiered) -> f64 {
    if sizes.clone().count() < options.min_threshold {
        return 0.0;
    }
    let total: f64 = sizes.clone().map(|size| size as f64).sum();
    let tiers = (options.min_threshold as f64).ln();
    sizes.filter(|size| *size > 0).map(|size| size as f64 * (total / size as f64).ln() / tiers).sum()
}

struct Bucket {
    mean: f64,
    /// Indexes of candidates, by size ascending.
    members: Vec<usize>,
}

fn buckets(candidates: &[Candidate], mut by_size: Vec<usize>, options: &SizeTiered) -> Vec<Bucket> {
    by_size.sort_by_key(|i| candidates[*i].size);
    let mut buckets: Vec<Bucket> = Vec::new();
    let least = options.min_sstable_size as f64;
    for i in by_size {
        let size = candidates[i].size as f64;
        let fits = |bucket: &Bucket| {
            (size > bucket.mean * options.bucket_low && size < bucket.mean * options.bucket_high)
                || (size < least && bucket.mean < least)
        };
        // Sizes ascend, so only the last bucket can match.
        match buckets.last_mut().filter(|bucket| fits(bucket)) {
            Some(bucket) => {
                let n = bucket.members.len() as f64;
                bucket.mean = (bucket.mean * n + size) / (n + 1.0);
                bucket.members.push(i);
            }
            None => buckets.push(Bucket { mean: size, members: vec![i] }),
        }
    }
    buckets
}
