//! Decides which sstables of a tablet to merge, and into what. Pure. Each strategy has a file.
//!
//! The choice affects cost only: no merge changes an answer. If a strategy finds nothing to merge,
//! a single sstable with enough droppable tombstones may be rewritten.

mod leveled;
mod size_tiered;
#[cfg(test)]
mod tests;
mod time_window;

use super::options::{Options, Strategy, Tombstones};
use model::time::Timestamp;
use rt::time::Duration;

/// An sstable of the tablet that compaction may take, now or later.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// Size in bytes.
    pub size: u64,
    /// The estimated fraction of tombstones past their grace period.
    pub droppable: f64,
    /// How long ago it was written.
    pub age: Duration,
    /// Its level.
    pub level: u32,
    /// Its newest write.
    pub newest: Timestamp,
    /// Its first and last token.
    pub span: (i64, i64),
    /// A compaction is using it.
    pub busy: bool,
}

/// A merge to run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pick {
    /// The indexes of the candidates, ascending.
    pub inputs: Vec<usize>,
    /// The level of the outputs.
    pub level: u32,
    /// The size at which a new sstable is begun, in bytes.
    pub split: Option<u64>,
    /// The only input moves to the level unchanged, without being rewritten.
    pub moves: bool,
}

impl Pick {
    fn new(mut inputs: Vec<usize>) -> Pick {
        inputs.sort_unstable();
        Pick { inputs, level: 0, split: None, moves: false }
    }

    /// Moves an sstable to another level unchanged.
    fn move_of(own: usize, level: u32) -> Pick {
        Pick { level, moves: true, ..Pick::new(vec![own]) }
    }

    fn at_level(self, level: u32, split: u64) -> Pick {
        Pick { level, split: Some(split), ..self }
    }
    /// Whether the inputs are free candidates, each once.
    fn is_valid(&self, candidates: &[Candidate]) -> bool {
        let is_free = |i: &usize| candidates.get(*i).is_some_and(|own| !own.busy);
        !self.inputs.is_empty()
            && self.inputs.is_sorted_by(|a, b| a < b)
            && self.inputs.iter().all(is_free)
            && (!self.moves || self.inputs.len() == 1)
    }
}

/// The next compaction; `None` if there is nothing to do.
pub(crate) fn pick(candidates: &[Candidate], options: &Options) -> Option<Pick> {
    let picked = match &options.strategy {
        Strategy::SizeTiered(tiered) => size_tiered::pick(candidates, tiered),
        Strategy::Leveled(leveled) => leveled::pick(candidates, leveled),
        Strategy::TimeWindow(windows) => time_window::pick(candidates, windows),
    };
    let picked = picked.or_else(|| {
        let own = rewrite(candidates, options.tombstones.as_ref()?)?;
        let picked = Pick::new(vec![own]);
        match &options.strategy {
            Strategy::Leveled(leveled) if candidates[own].level > 0 => {
                Some(picked.at_level(candidates[own].level, leveled.sstable_size))
            }
            _ => Some(picked),
        }
    });
    debug_assert!(picked.as_ref().is_none_or(|pick| pick.is_valid(candidates)), "free sstables are picked, each once");
    picked
}

/// Merges all sstables to the extent that the strategy allows, in one or several compactions.
pub(crate) fn pick_all(candidates: &[Candidate], options: &Options) -> Vec<Pick> {
    let free: Vec<usize> = (0..candidates.len()).filter(|i| !candidates[*i].busy).collect();
    if free.is_empty() {
        return Vec::new();
    }
    let picks = match &options.strategy {
        Strategy::SizeTiered(_) => vec![Pick::new(free)],
        Strategy::Leveled(leveled) => vec![leveled::pick_all(candidates, free, leveled)],
        Strategy::TimeWindow(windows) => time_window::pick_all(candidates, free, windows),
    };
    debug_assert!(picks.iter().all(|pick| pick.is_valid(candidates)), "free sstables are picked, each once");
    picks
}

/// An estimate of the bytes to be written until there is nothing left to merge. It is not 0 in a
/// steady state. It is compared with memory to determine how urgent compaction is.
pub(crate) fn backlog(candidates: &[Candidate], options: &Options) -> f64 {
    match &options.strategy {
        Strategy::SizeTiered(tiered) => size_tiered::backlog(candidates.iter().map(|own| own.size), tiered),
        Strategy::Leveled(leveled) => leveled::backlog(candidates, leveled),
        Strategy::TimeWindow(windows) => time_window::backlog(candidates, windows),
    }
}

/// The sstable with the largest fraction of droppable tombstones, if that exceeds the threshold.
fn rewrite(candidates: &[Candidate], tombstones: &Tombstones) -> Option<usize> {
    candidates
        .iter()
        .enumerate()
        .filter(|(_, own)| !own.busy && own.droppable > tombstones.threshold && own.age >= tombstones.interval)
        .max_by(|(_, a), (_, b)| a.droppable.total_cmp(&b.droppable))
        .map(|(i, _)| i)
}
