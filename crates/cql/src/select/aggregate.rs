//! Aggregates: `count`, `min`, `max`, `sum`, `avg`.

use super::selector::{Row, Selector};
use crate::error::Error;
use crate::term::numbers::is_number;
use bytes::Bytes;
use model::CqlType;
use model::aggregate::Accumulator;

pub use model::aggregate::AggregateKind as Kind;

/// The aggregate with this function name.
pub fn kind_of_name(name: &str) -> Option<Kind> {
    Some(match name {
        "count" => Kind::Count,
        "min" => Kind::Min,
        "max" => Kind::Max,
        "sum" => Kind::Sum,
        "avg" => Kind::Avg,
        _ => return None,
    })
}

/// An aggregate function over an expression.
#[derive(Clone, PartialEq, Debug)]
pub struct Aggregate {
    /// The function.
    pub kind: Kind,
    /// The expression. `None` counts rows.
    pub argument: Option<Selector>,
    /// The type of the argument.
    pub ty: CqlType,
}

impl Aggregate {
    /// Whether the aggregate accepts values of this type.
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

/// The running state of an aggregate over the rows of a group.
pub struct State<'a> {
    aggregate: &'a Aggregate,
    values: Accumulator,
}

impl<'a> State<'a> {
    /// The state before the first row.
    pub fn new(aggregate: &'a Aggregate) -> Self {
        State { aggregate, values: Accumulator::new(aggregate.kind, &aggregate.ty) }
    }

    /// Adds rows whose values are not needed.
    pub fn add_rows(&mut self, rows: u64) {
        self.values.add_rows(rows);
    }

    /// Adds one row.
    pub fn add(&mut self, row: Row<'_>) -> Result<(), Error> {
        match self.argument() {
            Some(argument) => self.add_value(argument.evaluate(row)?),
            None => {
                self.values.add_rows(1);
                Ok(())
            }
        }
    }

    /// The aggregated value; none: rows.
    pub fn argument(&self) -> Option<&'a Selector> {
        self.aggregate.argument.as_ref()
    }

    /// The argument's value for one row.
    pub fn add_value(&mut self, value: Option<Bytes>) -> Result<(), Error> {
        match value {
            Some(value) => Ok(self.values.add(&value)?),
            None => Ok(()),
        }
    }

    /// The bytes of the value that is kept for the result.
    pub fn held_bytes(&self) -> usize {
        self.values.held_bytes()
    }

    /// Adds a partial result that replicas computed from some of the rows.
    pub fn add_part(&mut self, part: Option<&[u8]>) -> Result<(), Error> {
        Ok(self.values.add_part(part)?)
    }

    /// The result.
    pub fn finish(self) -> Result<Option<Bytes>, Error> {
        Ok(self.values.finish()?.map(Bytes::from))
    }
}
