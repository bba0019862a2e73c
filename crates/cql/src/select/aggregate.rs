//! Aggregates: count, min, max, sum, avg.

use super::selector::{Row, Selector};
use crate::error::Error;
use crate::term::numbers::{Total, is_number};
use bytes::Bytes;
use model::CqlType;
use model::types::compare;
use std::cmp::Ordering;

/// What is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `count(*)`, or of values that are not null.
    Count,
    /// The least value.
    Min,
    /// The greatest value.
    Max,
    /// The sum, of the values' own type.
    Sum,
    /// The mean, of the values' own type.
    Avg,
}

impl Kind {
    /// The aggregate of a function's name.
    pub fn of_name(name: &str) -> Option<Kind> {
        Some(match name {
            "count" => Kind::Count,
            "min" => Kind::Min,
            "max" => Kind::Max,
            "sum" => Kind::Sum,
            "avg" => Kind::Avg,
            _ => return None,
        })
    }
}

/// An aggregate of an expression.
#[derive(Clone, PartialEq, Debug)]
pub struct Aggregate {
    /// What is computed.
    pub kind: Kind,
    /// Of what; none: of rows.
    pub argument: Option<Selector>,
    /// The type of the argument.
    pub ty: CqlType,
}

impl Aggregate {
    /// Whether values of a type can be aggregated so.
    pub fn is_allowed(kind: Kind, ty: &CqlType) -> bool {
        match kind {
            Kind::Count | Kind::Min | Kind::Max => true,
            Kind::Sum | Kind::Avg => is_number(ty),
        }
    }

    /// The type of the result.
    pub fn result(&self) -> CqlType {
        match (self.kind, &self.ty) {
            (Kind::Count, _) => CqlType::Bigint,
            (_, CqlType::Counter) => CqlType::Bigint,
            (_, ty) => ty.clone(),
        }
    }
}

/// An aggregate on its way over the rows of a group.
pub struct State<'a> {
    aggregate: &'a Aggregate,
    count: i64,
    best: Option<Bytes>,
    total: Option<Total>,
}

impl<'a> State<'a> {
    /// Before the first row.
    pub fn new(aggregate: &'a Aggregate) -> Self {
        let adds = matches!(aggregate.kind, Kind::Sum | Kind::Avg);
        State { aggregate, count: 0, best: None, total: adds.then(|| Total::new(&aggregate.ty)) }
    }

    /// So many rows of which nothing is looked at.
    pub fn add_rows(&mut self, rows: u64) {
        self.count += rows as i64;
    }

    /// One row.
    pub fn add(&mut self, row: Row<'_>) -> Result<(), Error> {
        let Some(argument) = &self.aggregate.argument else {
            self.count += 1;
            return Ok(());
        };
        let Some(value) = argument.evaluate(row)? else { return Ok(()) };
        self.count += 1;
        match self.aggregate.kind {
            Kind::Count => {}
            Kind::Min | Kind::Max => {
                let wanted = if self.aggregate.kind == Kind::Min { Ordering::Less } else { Ordering::Greater };
                if self.best.as_ref().is_none_or(|best| compare(&self.aggregate.ty, &value, best) == wanted) {
                    self.best = Some(value);
                }
            }
            Kind::Sum | Kind::Avg => {
                if let Some(total) = &mut self.total {
                    total.add(&value)?;
                }
            }
        }
        Ok(())
    }

    /// The result.
    pub fn finish(self) -> Result<Option<Bytes>, Error> {
        match (self.aggregate.kind, self.total) {
            (Kind::Sum, Some(total)) => total.sum(),
            (Kind::Avg, Some(total)) => total.mean(),
            (Kind::Min | Kind::Max, _) => Ok(self.best),
            _ => Ok(Some(Bytes::copy_from_slice(&self.count.to_be_bytes()))),
        }
    }
}
