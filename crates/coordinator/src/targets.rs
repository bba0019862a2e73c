//! The tablets that a page reads, one after the other, in the order of the query's rows.

use super::read::{Query, QueryPartitions};
use super::resume::Start;
use model::key::{DecoratedKey, RingCut};
use model::range::PartitionRange;
use replica::rate_limit::only_token;

/// The tablets to read, in order, each with the partitions to read there.
pub(super) enum Targets<'a> {
    Keys { query: &'a Query, keys: &'a [DecoratedKey] },
    Range { query: &'a Query, left: Option<PartitionRange> },
}

impl<'a> Targets<'a> {
    /// The targets that remain after `start`. None: `start` is in no partition of the query.
    pub fn new(query: &'a Query, start: Option<&Start>) -> Option<Self> {
        match &query.partitions {
            QueryPartitions::Keys(keys) => {
                let mut keys = &keys[..];
                if let Some(start) = start {
                    let at = keys.iter().position(|key| *key == start.key)?;
                    keys = &keys[at + usize::from(!start.inside)..];
                }
                Some(Targets::Keys { query, keys })
            }
            QueryPartitions::Range(range) => {
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

    /// The place of the next target among the partitions of the query. `usize::MAX` for a scan of
    /// several partitions, whose targets are never counted.
    #[inline]
    pub fn place(&self) -> usize {
        match self {
            Targets::Keys { query, keys } => match &query.partitions {
                QueryPartitions::Keys(all) => all.len() - keys.len(),
                QueryPartitions::Range(_) => unreachable!("a query has one kind of partitions"),
            },
            Targets::Range { query, .. } => match &query.partitions {
                QueryPartitions::Range(all) if only_token(all).is_some() => 0,
                _ => usize::MAX,
            },
        }
    }

    /// The next tablet and the partitions to read there.
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
                debug_assert!(
                    own.as_ref().is_none_or(|own| own.start == range.start),
                    "no key between two tablets is left out"
                );
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

    /// Whether a range was returned by [`Targets::next`], and nothing before it is left.
    fn has_given(&self, range: &PartitionRange) -> bool {
        match self {
            Targets::Keys { query, keys } => match (&query.partitions, range.singular_key()) {
                (QueryPartitions::Keys(all), Some(key)) => all[..all.len() - keys.len()].contains(&key),
                _ => false,
            },
            Targets::Range { left, .. } => left.as_ref().is_none_or(|left| range.end <= left.start),
        }
    }

    /// Makes a target, and all that come after it, pending again: it was not asked, or its response
    /// was not used.
    pub fn give_back(&mut self, range: &PartitionRange) {
        debug_assert!(self.has_given(range), "only what was taken is given back");
        match self {
            Targets::Keys { query, keys } => {
                if let (QueryPartitions::Keys(all), Some(key)) = (&query.partitions, range.singular_key())
                    && let Some(at) = all.iter().position(|known| *known == key)
                {
                    *keys = &all[at..];
                }
            }
            Targets::Range { query, left } => {
                if let QueryPartitions::Range(all) = &query.partitions {
                    *left = Some(PartitionRange { start: range.start.clone(), end: all.end.clone() });
                }
            }
        }
    }
}
