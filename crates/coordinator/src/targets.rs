//! Which tablets a page asks, one after the other: those of the query's partitions, in the order in which rows come.

use super::read::{Partitions, Query};
use super::resume::Start;
use model::key::{DecoratedKey, RingCut};
use model::range::PartitionRange;

/// The tablets to ask, in order, each with the partitions it is asked for.
pub(super) enum Targets<'a> {
    Keys { query: &'a Query, keys: &'a [DecoratedKey] },
    Range { query: &'a Query, left: Option<PartitionRange> },
}

impl<'a> Targets<'a> {
    /// Those that are left after `start`. None: it is in no partition of the query.
    pub fn new(query: &'a Query, start: Option<&Start>) -> Option<Self> {
        match &query.partitions {
            Partitions::Keys(keys) => {
                let mut keys = &keys[..];
                if let Some(start) = start {
                    let at = keys.iter().position(|key| *key == start.key)?;
                    keys = &keys[at + usize::from(!start.inside)..];
                }
                Some(Targets::Keys { query, keys })
            }
            Partitions::Range(range) => {
                let mut left = range.clone();
                if let Some(start) = start {
                    let cut =
                        if start.inside { RingCut::before_key(&start.key) } else { RingCut::after_key(&start.key) };
                    left.start = left.start.max(cut);
                }
                Some(Targets::Range { query, left: (!left.is_empty()).then_some(left) })
            }
        }
    }

    /// The next tablet, with what it is asked for.
    pub fn next(&mut self) -> Option<(u32, PartitionRange)> {
        match self {
            Targets::Keys { query, keys } => {
                let (key, rest) = keys.split_first()?;
                *keys = rest;
                Some((query.table.tablets.tablet_of(key.token), PartitionRange::singular(key)))
            }
            Targets::Range { query, left } => {
                let range = left.take()?;
                let tablets = &query.table.tablets;
                // A cut after all keys of a tablet's last token belongs to the next tablet.
                let tablet = tablets.tablet_of(range.start.token);
                let at_end =
                    range.start.key.is_none() && range.start.after && range.start.token == tablets.last_token(tablet);
                let tablet = if at_end { tablet + 1 } else { tablet };
                if tablet >= tablets.count() {
                    return None;
                }
                let own = range.intersection(&tablets.range(tablet));
                let end = tablets.range(tablet).end;
                let rest = PartitionRange { start: range.start.max(end), end: range.end };
                *left = (!rest.is_empty() && tablet + 1 < tablets.count()).then_some(rest);
                match own {
                    Some(own) => Some((tablet, own)),
                    None => self.next(),
                }
            }
        }
    }

    /// Takes a target back, with all that came after it: it was not asked, or its answer was not used.
    pub fn give_back(&mut self, range: &PartitionRange) {
        match self {
            Targets::Keys { query, keys } => {
                if let (Partitions::Keys(all), Some(key)) = (&query.partitions, range.singular_key())
                    && let Some(at) = all.iter().position(|known| *known == key)
                {
                    *keys = &all[at..];
                }
            }
            Targets::Range { query, left } => {
                if let Partitions::Range(all) = &query.partitions {
                    *left = Some(PartitionRange { start: range.start.clone(), end: all.end.clone() });
                }
            }
        }
    }
}
