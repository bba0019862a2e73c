//! Aggregates: count, min, max, sum, avg.

use super::selector::{Row, Selector};
use crate::error::Error;
use bytes::Bytes;
use model::CqlType;
use model::types::{Decimal, Value, compare};
use num_bigint::BigInt;
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
        use CqlType::*;
        match kind {
            Kind::Count => true,
            Kind::Min | Kind::Max => !ty.contains_duration(),
            Kind::Sum | Kind::Avg => {
                matches!(ty, Tinyint | Smallint | Int | Bigint | Varint | Decimal | Float | Double | Counter)
            }
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

/// An aggregate on its way over the rows.
pub struct State<'a> {
    aggregate: &'a Aggregate,
    count: i64,
    best: Option<Bytes>,
    whole: BigInt,
    decimal: Decimal,
    float: f64,
}

impl<'a> State<'a> {
    /// Before the first row.
    pub fn new(aggregate: &'a Aggregate) -> Self {
        State { aggregate, count: 0, best: None, whole: BigInt::ZERO, decimal: Decimal::new(0, 0), float: 0.0 }
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
        let ty = &self.aggregate.ty;
        self.count += 1;
        match self.aggregate.kind {
            Kind::Count => {}
            Kind::Min | Kind::Max => {
                let wanted = if self.aggregate.kind == Kind::Min { Ordering::Less } else { Ordering::Greater };
                if self.best.as_ref().is_none_or(|best| compare(ty, &value, best) == wanted) {
                    self.best = Some(value);
                }
            }
            Kind::Sum | Kind::Avg => {
                match Value::decode(ty, &value).map_err(|error| Error::invalid(error.to_string()))? {
                    Value::Float(v) => self.float += f64::from(v),
                    Value::Double(v) => self.float += v,
                    Value::Decimal(v) => self.decimal = sum(&self.decimal, &v)?,
                    Value::Empty | Value::Null => self.count -= 1,
                    other => self.whole += other.to_bigint().unwrap_or_default(),
                }
            }
        }
        Ok(())
    }

    /// The result.
    pub fn finish(self) -> Result<Option<Bytes>, Error> {
        let kind = self.aggregate.kind;
        let value = match kind {
            Kind::Count => Value::Bigint(self.count),
            Kind::Min | Kind::Max => return Ok(self.best),
            Kind::Sum | Kind::Avg => {
                let divisor = if kind == Kind::Avg { self.count.max(1) } else { 1 };
                match self.aggregate.ty {
                    CqlType::Float => Value::Float((self.float / divisor as f64) as f32),
                    CqlType::Double => Value::Double(self.float / divisor as f64),
                    CqlType::Decimal => Value::Decimal(quotient(&self.decimal, divisor)),
                    _ => Value::Varint(self.whole / divisor),
                }
            }
        };
        let bytes = value.encode(&self.aggregate.result());
        let overflow = |_| Error::invalid("Sum overflow. Values should be casted to a wider type.");
        Ok(bytes.map_err(overflow)?.map(Bytes::from))
    }
}

/// Numbers whose scales lie further apart than this are not added: the sum would have as many digits.
const MAX_SCALE_DISTANCE: i64 = 10_000;

fn sum(a: &Decimal, b: &Decimal) -> Result<Decimal, Error> {
    let scale = a.scale.max(b.scale);
    let raised = |decimal: &Decimal| {
        let distance = i64::from(scale) - i64::from(decimal.scale);
        if distance > MAX_SCALE_DISTANCE && decimal.unscaled != BigInt::ZERO {
            return Err(Error::invalid("The scales of the numbers to be added lie too far apart"));
        }
        Ok(&decimal.unscaled * BigInt::from(10).pow(distance.min(MAX_SCALE_DISTANCE) as u32))
    };
    Ok(Decimal::new(scale, raised(a)? + raised(b)?))
}

/// The quotient at the dividend's scale, halves to even.
fn quotient(decimal: &Decimal, divisor: i64) -> Decimal {
    let divisor = BigInt::from(divisor);
    let (quotient, rest) = (&decimal.unscaled / &divisor, &decimal.unscaled % &divisor);
    let twice: BigInt = BigInt::from(rest.magnitude().clone()) * 2;
    let sign = if decimal.unscaled < BigInt::ZERO { -1 } else { 1 };
    let odd = &quotient % 2 != BigInt::ZERO;
    let up = match twice.cmp(&divisor) {
        Ordering::Greater => true,
        Ordering::Equal => odd,
        Ordering::Less => false,
    };
    Decimal::new(decimal.scale, if up { quotient + sign } else { quotient })
}
