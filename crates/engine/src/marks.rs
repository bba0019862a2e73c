//! What replay must skip although no sstable says so: truncations, and compactions that left nothing.
//!
//! One small file per table and shard, replaced durably: `replay-marks-<shard>` in the table's directory. Writing it is the
//! moment at which a truncation happens: it also names the sstables that are void from then on, whose files may still be there.

use crate::commitlog::Position;
use crate::error::EngineError;
use crate::memtable::Interval;
use crate::replay::same_log;
use crate::sealed;
use crate::truncate::TruncateRecord;
use rt::ShardId;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const KIND: &str = "replay-marks";
const FORMAT: u32 = 1;
const PREFIX: &str = "replay-marks-";

/// One shard's marks for one table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Marks {
    /// The last truncation.
    pub truncated: Option<TruncateRecord>,
    /// By tablet: log intervals whose records are in no sstable any more, because nothing of them was left.
    pub covered: Vec<(u32, Interval)>,
    /// Generations of sstables that the truncation made void.
    pub void: Vec<String>,
}

impl Marks {
    /// Whether a record of the log need not be replayed.
    pub fn skip(&self, tablet: u32, position: Position) -> bool {
        let truncated =
            self.truncated.as_ref().is_some_and(|record| same_log(record.below, position) && position < record.below);
        truncated
            || self
                .covered
                .iter()
                .any(|(of, interval)| *of == tablet && interval.first <= position && position <= interval.last)
    }

    /// Replaces the file of a shard.
    pub async fn write(&self, dir: &Path, shard: ShardId) -> Result<(), EngineError> {
        let path = path(dir, shard);
        sealed::write(&path, KIND, FORMAT, self).await.map_err(EngineError::io(path))
    }

    /// All shards' marks in a table's directory, of the names in it.
    pub async fn read_all(dir: &Path, names: &[String]) -> Result<Vec<(ShardId, Marks)>, EngineError> {
        let mut all = Vec::new();
        for name in names {
            let Some(shard) = name.strip_prefix(PREFIX).and_then(|shard| shard.parse().ok()) else { continue };
            let path = dir.join(name);
            let text = rt::fs::read(&path).await.map_err(EngineError::io(&path))?;
            let marks = sealed::unseal(KIND, FORMAT, &text)
                .map_err(|why| EngineError::Damaged { path: path.clone(), why: why.to_string() })?;
            all.push((ShardId(shard), marks));
        }
        Ok(all)
    }
}

fn path(dir: &Path, shard: ShardId) -> PathBuf {
    dir.join(format!("{PREFIX}{shard}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn marks_come_back_and_skip_what_they_say() {
        rt::block_on(async {
            let scratch = Scratch::new("marks");
            let at = |segment, offset| Position { segment, offset };
            let marks = Marks {
                truncated: Some(TruncateRecord { at_micros: 5, below: at(7, 100) }),
                covered: vec![(3, Interval { first: at(9, 0), last: at(9, 50) })],
                void: vec!["17".into()],
            };
            marks.write(scratch.path(), ShardId(2)).await.unwrap();
            let names = ["replay-marks-2".to_string(), "replay-marks-x".into(), "me-17-big-Data.db".into()];
            let all = Marks::read_all(scratch.path(), &names).await.unwrap();
            assert_eq!(all, vec![(ShardId(2), marks.clone())]);
            assert!(marks.skip(1, at(7, 99)) && marks.skip(1, at(6, 4000)));
            assert!(!marks.skip(1, at(7, 100)) && !marks.skip(1, at(9, 20)));
            assert!(marks.skip(3, at(9, 50)) && !marks.skip(3, at(9, 51)));
            let other_shard = at((1 << 44) | 1, 0);
            assert!(!marks.skip(1, other_shard));
            rt::fs::write_durably(&path(scratch.path(), ShardId(2)), b"messina").await.unwrap();
            assert!(matches!(Marks::read_all(scratch.path(), &names).await, Err(EngineError::Damaged { .. })));
        });
    }
}
