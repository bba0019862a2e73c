//! Records of the commitlog that replay must skip although no sstable covers them: truncated
//! records, and records that a compaction dropped entirely.
//!
//! There is one small file per table and shard, `replay-marks-<shard>` in the table's directory. It
//! is replaced durably. A truncation takes effect when the file is written. The file also names the
//! truncated sstables, because their files may still exist.

use crate::commitlog::{Position, same_log};
use crate::error::EngineError;
use crate::files::sealed::{self, Unusable};
use crate::files::{FileOwner, read_owned};
use crate::memtable::Interval;
use model::HostId;
use model::range::PartitionRange;
use model::token::Token;
use rt::ShardId;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

const KIND: &str = "replay-marks";
const FORMAT: u32 = 1;
const PREFIX: &str = "replay-marks-";

/// The content of the file, for error messages.
pub(crate) const HOLDS: &str = "the truncated or removed parts of the commitlog: without it, these rows return";

/// When a table was truncated, and at which position of a shard's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TruncateRecord {
    /// The time in microseconds since 1970.
    pub at_micros: i64,
    /// Records of the table below this position are not replayed.
    pub below: Position,
}

/// A log interval whose records of a token range are in no sstable.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct CoveredTokens {
    /// The first token.
    first: Token,
    /// The last token.
    last: Token,
    interval: Interval,
}

/// One shard's replay filters for one table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReplayFilters {
    /// The last truncation.
    pub truncated: Option<TruncateRecord>,
    /// By tablet: log intervals whose records are in no sstable, because a compaction purged all
    /// of them or the tablet was removed. Release 0.1.0 knows only this list.
    covered: Vec<(u32, Interval)>,
    /// The last entries of `covered` by tokens, because the number of a tablet does not outlive a
    /// split. Entries of release 0.1.0, in which no tablet was split, are not here.
    #[serde(default)]
    covered_tokens: Vec<CoveredTokens>,
    /// The generations of the truncated sstables.
    #[serde(rename = "void")]
    pub truncated_sstables: Vec<String>,
    /// How often the file was written; 0 by a release that did not count. The inventory of the
    /// data directory has this number, too, so that a start notices an older copy of the file.
    #[serde(default)]
    pub sequence: u64,
    /// The node that wrote the file: the truncations of another node say nothing about this
    /// node's log. `None` until it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<FileOwner>,
}

impl ReplayFilters {
    /// Adds an interval of a tablet with this range of tokens.
    pub fn cover(&mut self, tablet: u32, range: &PartitionRange, interval: Interval) {
        debug_assert!(range.start.key.is_none() && range.end.key.is_none(), "a tablet has whole tokens");
        let before = range.start.token;
        let first = if range.start.after { Token(before.0.saturating_add(1)) } else { before };
        let last = range.end.token;
        let of_first_release = self.covered.len() - self.covered_tokens.len();
        let is_part = |known: &CoveredTokens| {
            (known.first, known.last, known.interval.first) == (first, last, interval.first)
                && same_log(known.interval.last, interval.last)
        };
        // Truncations cover the same part of a log again and again.
        if let Some(at) = self.covered_tokens.iter().position(is_part) {
            let merged = self.covered_tokens[at].interval.hull(&interval);
            self.covered_tokens[at].interval = merged;
            self.covered[of_first_release + at].1 = merged;
            return;
        }
        self.covered.push((tablet, interval));
        self.covered_tokens.push(CoveredTokens { first, last, interval });
    }

    /// Drops the other intervals.
    pub fn keep_covered(&mut self, is_kept: impl Fn(&Interval) -> bool) {
        self.covered.retain(|(_, interval)| is_kept(interval));
        self.covered_tokens.retain(|covered| is_kept(&covered.interval));
    }

    /// Whether replay skips a record of a partition.
    pub fn skip(&self, tablet: u32, token: Token, position: Position) -> bool {
        let includes = |interval: &Interval| interval.first <= position && position <= interval.last;
        let truncated =
            self.truncated.as_ref().is_some_and(|record| same_log(record.below, position) && position < record.below);
        let of_first_release = &self.covered[..self.covered.len().saturating_sub(self.covered_tokens.len())];
        truncated
            || of_first_release.iter().any(|(of, interval)| *of == tablet && includes(interval))
            || self
                .covered_tokens
                .iter()
                .any(|covered| (covered.first..=covered.last).contains(&token) && includes(&covered.interval))
    }

    /// Replaces the file of a shard of the node `host`.
    pub async fn write(&mut self, dir: &Path, shard: ShardId, host: HostId) -> Result<(), EngineError> {
        self.sequence += 1;
        self.owner = Some(FileOwner::of_files_in(dir, host));
        let path = self::path(dir, shard);
        sealed::write(&path, KIND, FORMAT, self).await.map_err(EngineError::io(path))
    }

    /// The replay filters of all shards in a table's directory of the node `host`. `names` are
    /// the files in it.
    pub async fn read_all(
        dir: &Path,
        names: &[String],
        host: HostId,
    ) -> Result<Vec<(ShardId, ReplayFilters)>, EngineError> {
        let mut all = Vec::new();
        for name in names {
            let Some(shard) = name.strip_prefix(PREFIX).and_then(|shard| shard.parse().ok()) else { continue };
            let path = dir.join(name);
            let filters = read_at(&path, host).await.map_err(EngineError::io(&path))?;
            let filters = filters.map_err(|Unusable { why, .. }| EngineError::Damaged { path, why, holds: HOLDS })?;
            all.push((ShardId(shard), filters));
        }
        Ok(all)
    }
}

/// The replay filters in a file of the node `host`, or why there are none.
async fn read_at(path: &Path, host: HostId) -> io::Result<Result<ReplayFilters, Unusable>> {
    read_owned(path, host, (KIND, FORMAT), |filters: &ReplayFilters| filters.owner).await
}

/// The defect of the file of a shard of the node `host`. The file must have been written `sequence`
/// times.
pub(crate) async fn defect(path: &Path, sequence: u64, host: HostId) -> io::Result<Option<Unusable>> {
    Ok(match read_at(path, host).await? {
        Ok(filters) if filters.sequence >= sequence => None,
        Ok(filters) => {
            let why = format!("is older than it was (written {} times, of {sequence})", filters.sequence);
            Some(Unusable { why, is_there: false })
        }
        Err(unusable) => Some(unusable),
    })
}

/// Whether a file with this name has replay filters.
pub(crate) fn is_name_of_filters(name: &str) -> bool {
    shard_of_name(name).is_some()
}

/// The shard that a file of replay filters belongs to.
pub(crate) fn shard_of_name(name: &str) -> Option<u16> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// The path of a shard's file in a table's directory.
pub(crate) fn path(dir: &Path, shard: ShardId) -> PathBuf {
    dir.join(format!("{PREFIX}{shard}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::Scratch;
    use uuid::Uuid;

    const HOST: HostId = HostId(Uuid::from_u128(1));

    #[test]
    fn replay_filters_round_trip_and_skip_covered_records() {
        rt::block_on(async {
            let scratch = Scratch::new("filters");
            let at = |segment, offset| Position { segment, offset };
            let mut filters = ReplayFilters {
                truncated: Some(TruncateRecord { at_micros: 5, below: at(7, 100) }),
                covered: vec![(3, Interval { first: at(9, 0), last: at(9, 50) })],
                covered_tokens: Vec::new(),
                truncated_sstables: vec!["17".into()],
                sequence: 3,
                owner: None,
            };
            filters.write(&scratch, ShardId(2), HOST).await.unwrap();
            let names = ["replay-marks-2".to_string(), "replay-marks-x".into(), "me-17-big-Data.db".into()];
            let all = ReplayFilters::read_all(&scratch, &names, HOST).await.unwrap();
            assert_eq!(all, vec![(ShardId(2), filters.clone())]);
            assert_eq!(filters.sequence, 4);
            let path = self::path(&scratch, ShardId(2));
            assert_eq!(defect(&path, 4, HOST).await.unwrap(), None);
            assert!(defect(&path, 5, HOST).await.unwrap().is_some_and(|defect| defect.why.contains("older")));
            let other = HostId(Uuid::from_u128(2));
            assert!(defect(&path, 4, other).await.unwrap().is_some_and(|defect| defect.why.contains("another node")));
            let error = ReplayFilters::read_all(&scratch, &names, other).await.unwrap_err().to_string();
            assert!(error.contains("replay-marks-2 is of another node") && error.contains("start once"), "{error}");
            let skip = |filters: &ReplayFilters, tablet, position| filters.skip(tablet, Token(5), position);
            assert!(skip(&filters, 1, at(7, 99)) && skip(&filters, 1, at(6, 4000)));
            assert!(!skip(&filters, 1, at(7, 100)) && !skip(&filters, 1, at(9, 20)));
            assert!(skip(&filters, 3, at(9, 50)) && !skip(&filters, 3, at(9, 51)), "as release 0.1.0 wrote it");
            let other_shard = at((1 << 44) | 1, 0);
            assert!(!skip(&filters, 1, other_shard));
            let whole = PartitionRange::tokens(Token(4), Token(5));
            filters.cover(7, &whole, Interval { first: at(8, 0), last: at(8, 9) });
            assert!(skip(&filters, 0, at(8, 9)) && skip(&filters, 3, at(9, 50)));
            assert!(!filters.skip(7, Token(4), at(8, 9)) && !filters.skip(7, Token(6), at(8, 9)));
            filters.keep_covered(|interval| interval.first == at(8, 0));
            assert!(skip(&filters, 0, at(8, 9)) && !skip(&filters, 3, at(9, 50)));
            assert_eq!(filters.covered.len(), filters.covered_tokens.len());
            rt::fs::write_durably(&path, b"messina").await.unwrap();
            assert!(matches!(ReplayFilters::read_all(&scratch, &names, HOST).await, Err(EngineError::Damaged { .. })));
            rt::fs::remove_file(&path).await.unwrap();
            rt::fs::create_dir_all(&path).await.unwrap();
            let error = ReplayFilters::read_all(&scratch, &names, HOST).await.unwrap_err().to_string();
            assert!(error.contains("is a directory") && error.contains("start once"), "{error}");
        });
    }
}
