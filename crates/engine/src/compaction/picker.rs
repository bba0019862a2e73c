//! Which sstables of a tablet to merge, and into what: pure. A file per strategy.
//!
//! Whatever is picked, a merge changes no answer: the choice is about cost only. Where a strategy finds nothing to merge, a
//! single sstable that is mostly droppable tombstones may be rewritten.

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
    /// Bytes.
    pub size: u64,
    /// The part of it that is tombstones past their grace period, estimated.
    pub droppable: f64,
    /// How long ago it was written.
    pub age: Duration,
    /// Its level.
    pub level: u32,
    /// Its newest write.
    pub newest: Timestamp,
    /// Its first and last token.
    pub span: (i64, i64),
    /// A compaction works on it.
    pub busy: bool,
}

/// What to merge.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pick {
    /// The indexes of the candidates, ascending.
    pub inputs: Vec<usize>,
    /// The level of what comes out.
    pub level: u32,
    /// The size at which a new sstable is begun, in bytes.
    pub split: Option<u64>,
    /// The one input goes to the level as it is, without being written again.
    pub moves: bool,
}

impl Pick {
    fn new(mut inputs: Vec<usize>) -> Pick {
        inputs.sort_unstable();
        Pick { inputs, level: 0, split: None, moves: false }
    }

    /// One that goes to another level as it is.
    fn move_of(own: usize, level: u32) -> Pick {
        Pick { level, moves: true, ..Pick::new(vec![own]) }
    }

    fn at_level(self, level: u32, split: u64) -> Pick {
        Pick { level, split: Some(split), ..self }
    }
}

/// What to do next; `None` if there is nothing to do.
pub(crate) fn pick(candidates: &[Candidate], options: &Options) -> Option<Pick> {
    let picked = match &options.strategy {
        Strategy::SizeTiered(tiered) => size_tiered::pick(candidates, tiered),
        Strategy::Leveled(leveled) => leveled::pick(candidates, leveled),
        Strategy::TimeWindow(windows) => time_window::pick(candidates, windows),
    };
    picked.or_else(|| {
        let own = rewrite(candidates, options.tombstones.as_ref()?)?;
        let picked = Pick::new(vec![own]);
        match &options.strategy {
            Strategy::Leveled(leveled) if candidates[own].level > 0 => {
                Some(picked.at_level(candidates[own].level, leveled.sstable_size))
            }
            _ => Some(picked),
        }
    })
}

/// Everything merged as far as the strategy allows: each a merge of its own.
pub(crate) fn pick_all(candidates: &[Candidate], options: &Options) -> Vec<Pick> {
    let free: Vec<usize> = (0..candidates.len()).filter(|i| !candidates[*i].busy).collect();
    if free.is_empty() {
        return Vec::new();
    }
    match &options.strategy {
        Strategy::SizeTiered(_) => vec![Pick::new(free)],
        Strategy::Leveled(leveled) => vec![leveled::pick_all(candidates, free, leveled)],
        Strategy::TimeWindow(windows) => time_window::pick_all(candidates, free, windows),
    }
}

/// About how many bytes are still to be written until nothing is left to merge. Steady states have some, too: it is compared with
/// memory to say how hurried compaction is.
pub(crate) fn backlog(candidates: &[Candidate], options: &Options) -> f64 {
    match &options.strategy {
        Strategy::SizeTiered(tiered) => size_tiered::backlog(candidates.iter().map(|own| own.size), tiered),
        Strategy::Leveled(leveled) => leveled::backlog(candidates, leveled),
        Strategy::TimeWindow(windows) => time_window::backlog(candidates, windows),
    }
}

/// The sstable with most droppable tombstones, if that is enough.
fn rewrite(candidates: &[Candidate], tombstones: &Tombstones) -> Option<usize> {
    candidates
        .iter()
        .enumerate()
        .filter(|(_, own)| !own.busy && own.droppable > tombstones.threshold && own.age >= tombstones.interval)
        .max_by(|(_, a), (_, b)| a.droppable.total_cmp(&b.droppable))
        .map(|(i, _)| i)
}
