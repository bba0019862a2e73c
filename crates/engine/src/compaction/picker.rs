//! Which sstables of a tablet to merge: size-tiered, pure.
//!
//! Sstables of similar size form a bucket; the bucket with the most sstables is merged once it has enough. Where no bucket
//! has enough, a single sstable that is mostly droppable tombstones may be rewritten.

use super::options::SizeTiered;
use rt::time::Duration;

/// An sstable that is free to be merged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// Bytes.
    pub size: u64,
    /// The part of it that is tombstones past their grace period, estimated.
    pub droppable: f64,
    /// How long ago it was written.
    pub age: Duration,
}

/// The indexes of the candidates to merge, ascending; `None` if there is nothing to do.
pub(crate) fn pick(candidates: &[Candidate], options: &SizeTiered) -> Option<Vec<usize>> {
    let mut best: Option<Bucket> = None;
    for mut bucket in buckets(candidates, options) {
        if bucket.members.len() < options.min_threshold {
            continue;
        }
        // The smallest first: they cost least and reduce the count as much.
        bucket.members.truncate(options.max_threshold);
        if best.as_ref().is_none_or(|best| best.members.len() < bucket.members.len()) {
            best = Some(bucket);
        }
    }
    if let Some(bucket) = best {
        let mut picked = bucket.members;
        picked.sort_unstable();
        return Some(picked);
    }
    candidates
        .iter()
        .enumerate()
        .filter(|(_, own)| {
            own.droppable > options.tombstone_threshold && own.age >= options.tombstone_compaction_interval
        })
        .max_by(|(_, a), (_, b)| a.droppable.total_cmp(&b.droppable))
        .map(|(i, _)| vec![i])
}

struct Bucket {
    mean: f64,
    /// Indexes of candidates, by size ascending.
    members: Vec<usize>,
}

fn buckets(candidates: &[Candidate], options: &SizeTiered) -> Vec<Bucket> {
    let mut by_size: Vec<usize> = (0..candidates.len()).collect();
    by_size.sort_by_key(|i| candidates[*i].size);
    let mut buckets: Vec<Bucket> = Vec::new();
    let least = options.min_sstable_size as f64;
    for i in by_size {
        let size = candidates[i].size as f64;
        let fits = |bucket: &Bucket| {
            (size > bucket.mean * options.bucket_low && size < bucket.mean * options.bucket_high)
                || (size < least && bucket.mean < least)
        };
        // Sizes ascend, so only the last bucket can be near.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Each case of the file: options, sizes in MiB (`size/droppable/days` for tombstones), and what is picked.
    #[test]
    fn picks_as_the_file_says() {
        let mut cases = 0;
        for (number, line) in include_str!("picker_cases.txt").lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let (left, wanted) = line.split_once("=>").unwrap();
            let mut options = SizeTiered::default();
            let mut candidates = Vec::new();
            for word in left.split_whitespace() {
                if let Some((name, value)) = word.split_once('=') {
                    let map = [(name.to_string(), value.to_string())].into();
                    let read = SizeTiered::of(&map);
                    match name {
                        "min_threshold" => options.min_threshold = read.min_threshold,
                        "max_threshold" => options.max_threshold = read.max_threshold,
                        "bucket_low" => options.bucket_low = read.bucket_low,
                        "bucket_high" => options.bucket_high = read.bucket_high,
                        "min_sstable_size" => options.min_sstable_size = read.min_sstable_size,
                        "tombstone_threshold" => options.tombstone_threshold = read.tombstone_threshold,
                        other => panic!("line {number}: {other}"),
                    }
                    continue;
                }
                let mut parts = word.split('/');
                let mut number = || parts.next().map(|p| p.parse::<f64>().unwrap());
                candidates.push(Candidate {
                    size: (number().unwrap() * 1048576.0) as u64,
                    droppable: number().unwrap_or(0.0),
                    age: Duration::from_secs_f64(number().unwrap_or(10.0) * 86_400.0),
                });
            }
            let picked = pick(&candidates, &options);
            let shown =
                picked.map_or("-".to_string(), |p| p.iter().map(usize::to_string).collect::<Vec<_>>().join(" "));
            assert_eq!(shown, wanted.trim(), "line {}: {line}", number + 1);
            cases += 1;
        }
        assert!(cases > 10);
    }

    #[test]
    fn a_steady_stream_of_flushes_stays_in_few_sstables() {
        let options = SizeTiered { min_sstable_size: 0, ..SizeTiered::default() };
        let mut sizes: Vec<u64> = Vec::new();
        let (mut written, mut rewritten) = (0u64, 0u64);
        for n in 0..4000u64 {
            let size = 1000 + n * 7919 % 300;
            sizes.push(size);
            written += size;
            loop {
                let candidates: Vec<_> =
                    sizes.iter().map(|&size| Candidate { size, droppable: 0.0, age: Duration::ZERO }).collect();
                let Some(picked) = pick(&candidates, &options) else { break };
                let merged: u64 = picked.iter().map(|i| sizes[*i]).sum();
                for i in picked.into_iter().rev() {
                    sizes.remove(i);
                }
                sizes.push(merged);
                rewritten += merged;
            }
        }
        assert!(sizes.len() < 30, "{} sstables", sizes.len());
        assert!(rewritten / written < 8, "written {} times over", rewritten / written);
    }
}
