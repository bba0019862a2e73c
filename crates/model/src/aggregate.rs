//! Aggregates: count, min, max, sum, avg.
//!
//! The values may be many and on several nodes. Each node reduces its values to a partial result of
//! a few bytes ([`Accumulator::part`]), and the coordinator combines these. The result is the same
//! as for all values together. Only sums of `float` and `double` depend, in their last digits, on
//! the order of addition.
//!
//! The encoding of a partial result is fixed, because nodes of several releases exchange it. It is
//! an `i64`, big-endian, for `count`; the value, or null if there was none, for `min` and `max`; a
//! [`Total`] for `sum` and `avg`.

use crate::total::{Total, TotalError};
use crate::types::{CqlType, compare};
use std::cmp::Ordering;

/// The function of an aggregate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AggregateKind {
    /// The number of rows, or of values that are not null.
    Count = 0,
    /// The least value.
    Min = 1,
    /// The greatest value.
    Max = 2,
    /// The sum, in the type of the values.
    Sum = 3,
    /// The mean, in the type of the values.
    Avg = 4,
}

impl AggregateKind {
    /// All functions, in the order of their codes.
    pub const ALL: [AggregateKind; 5] =
        [AggregateKind::Count, AggregateKind::Min, AggregateKind::Max, AggregateKind::Sum, AggregateKind::Avg];

    /// The function with this code in messages.
    pub fn from_code(code: u8) -> Option<AggregateKind> {
        AggregateKind::ALL.into_iter().find(|kind| *kind as u8 == code)
    }
}

/// The aggregate of the values added so far.
#[derive(Clone, PartialEq, Debug)]
pub struct Accumulator {
    kind: AggregateKind,
    ty: CqlType,
    count: i64,
    best: Option<Vec<u8>>,
    total: Option<Total>,
}

impl Accumulator {
    /// An accumulator without values, for values of this type.
    pub fn new(kind: AggregateKind, ty: &CqlType) -> Self {
        let adds = matches!(kind, AggregateKind::Sum | AggregateKind::Avg);
        Accumulator { kind, ty: ty.clone(), count: 0, best: None, total: adds.then(|| Total::new(ty)) }
    }

    /// Counts `rows` rows without reading a value.
    pub fn add_rows(&mut self, rows: u64) {
        debug_assert!(self.kind == AggregateKind::Count, "only a count needs no values");
        self.count = self.count.saturating_add_unsigned(rows);
    }

    /// Adds one serialised value that is not null.
    pub fn add(&mut self, value: &[u8]) -> Result<(), TotalError> {
        self.count += 1;
        self.take_best(value);
        match &mut self.total {
            Some(total) => total.add(value),
            None => Ok(()),
        }
    }

    /// The bytes of the value that is kept, for `min` and `max`.
    pub fn held_bytes(&self) -> usize {
        self.best.as_ref().map_or(0, Vec::len)
    }

    fn take_best(&mut self, value: &[u8]) {
        let wanted = match self.kind {
            AggregateKind::Min => Ordering::Less,
            AggregateKind::Max => Ordering::Greater,
            _ => return,
        };
        match &mut self.best {
            Some(best) if compare(&self.ty, value, best) != wanted => {}
            Some(best) => {
                best.clear();
                best.extend_from_slice(value);
            }
            None => self.best = Some(value.to_vec()),
        }
    }

    /// The partial result, for [`Accumulator::add_part`] of an accumulator of the same function and
    /// type.
    pub fn part(self) -> Option<Vec<u8>> {
        match (self.kind, self.total) {
            (AggregateKind::Min | AggregateKind::Max, _) => self.best,
            (_, Some(total)) => Some(total.to_bytes()),
            _ => Some(self.count.to_be_bytes().to_vec()),
        }
    }

    /// Adds the partial result of another accumulator.
    pub fn add_part(&mut self, part: Option<&[u8]>) -> Result<(), TotalError> {
        let malformed = || TotalError::Malformed("a part of an aggregate is malformed".into());
        match (self.kind, &mut self.total) {
            (AggregateKind::Min | AggregateKind::Max, _) => {
                if let Some(value) = part {
                    self.take_best(value);
                }
                Ok(())
            }
            (_, Some(total)) => total.add_part(part.ok_or_else(malformed)?),
            _ => {
                let count = part.and_then(|part| part.try_into().ok()).map(i64::from_be_bytes);
                self.count = self.count.saturating_add(count.ok_or_else(malformed)?);
                Ok(())
            }
        }
    }

    /// The result, serialised.
    pub fn finish(self) -> Result<Option<Vec<u8>>, TotalError> {
        match (self.kind, self.total) {
            (AggregateKind::Sum, Some(total)) => total.sum(),
            (AggregateKind::Avg, Some(total)) => total.mean(),
            (AggregateKind::Min | AggregateKind::Max, _) => Ok(self.best),
            _ => Ok(Some(self.count.to_be_bytes().to_vec())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(kind: AggregateKind, values: &[i32]) -> Accumulator {
        let mut all = Accumulator::new(kind, &CqlType::Int);
        values.iter().for_each(|value| all.add(&value.to_be_bytes()).expect("a number"));
        all
    }

    #[test]
    fn parts_come_to_the_same_as_the_whole() {
        for kind in AggregateKind::ALL {
            for values in [&[][..], &[5], &[3, -7, 12, 0], &[i32::MIN, i32::MAX, 1]] {
                let whole = over(kind, values);
                for (a, b) in (0..=values.len()).flat_map(|a| (a..=values.len()).map(move |b| (a, b))) {
                    let mut parts = Accumulator::new(kind, &CqlType::Int);
                    for part in [&values[..a], &values[a..b], &values[b..]] {
                        parts.add_part(over(kind, part).part().as_deref()).expect("it is a part");
                    }
                    assert_eq!(parts.finish(), whole.clone().finish(), "{kind:?} of {values:?}, cut at {a} and {b}");
                }
            }
        }
    }

    #[test]
    fn the_form_of_parts_stays() {
        let part = |kind| over(kind, &[2, 7]).part().expect("there were values");
        assert_eq!(part(AggregateKind::Count), [0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(part(AggregateKind::Min), [0, 0, 0, 2]);
        assert_eq!(part(AggregateKind::Max), [0, 0, 0, 7]);
        let total = [&2i64.to_be_bytes()[..], &9i128.to_be_bytes()].concat();
        assert_eq!((part(AggregateKind::Sum), part(AggregateKind::Avg)), (total.clone(), total));
        let codes = AggregateKind::ALL.map(|kind| kind as u8);
        assert_eq!(codes, [0, 1, 2, 3, 4]);
        assert_eq!(AggregateKind::from_code(5), None);
    }

    #[test]
    fn malformed_partial_results_are_refused() {
        for kind in [AggregateKind::Count, AggregateKind::Sum, AggregateKind::Avg] {
            for part in [None, Some(&[1, 2, 3][..])] {
                let taken = Accumulator::new(kind, &CqlType::Int).add_part(part);
                assert!(matches!(taken, Err(TotalError::Malformed(_))), "{kind:?} {part:?}");
            }
        }
    }
}
