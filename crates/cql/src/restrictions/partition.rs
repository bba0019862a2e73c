//! The partition restrictions of a statement: keys, or a range of tokens.

use super::{MAX_PARTITION_KEYS, Op, Ops, Sameness, bound, check_length, combinations, null, unset, values};
use crate::error::Error;
use crate::term::{Env, Term, Val};
use bytes::Bytes;
use model::TableSchema;
use model::key::{DecoratedKey, MAX_KEY_BYTES, RingCut, encode_partition_key};
use model::range::PartitionRange;
use model::token::Token;
use smallvec::SmallVec;

/// Restrictions of the partition key.
#[derive(Clone, PartialEq, Debug)]
pub enum Partition {
    /// No restriction, or only such as need filtering. All partitions are read.
    All,
    /// Values for every column, in the order of the key.
    Keys(Box<[Ops]>),
    /// Bounds of the token, at least one.
    Token(Box<[Op]>),
}

/// The partitions that a request selects.
#[derive(Clone, PartialEq, Debug)]
pub enum Partitions {
    /// Distinct keys, in the order of the key's columns. May be empty.
    Keys(SmallVec<[DecoratedKey; 1]>),
    /// A range of the ring.
    Range(PartitionRange),
}

impl Partition {
    /// Whether partitions are selected by their keys.
    pub fn is_keys(&self) -> bool {
        matches!(self, Partition::Keys(_))
    }

    /// The partitions selected with these values.
    pub fn evaluate(&self, schema: &TableSchema, env: Env<'_>, write: bool) -> Result<Partitions, Error> {
        match self {
            Partition::All => Ok(Partitions::Range(PartitionRange::FULL)),
            Partition::Token(ops) => token_range(ops, env),
            Partition::Keys(columns) => keys(columns, schema, env, write).map(Partitions::Keys),
        }
    }

    /// The variables that form the key, if each column is equal to exactly one variable.
    pub fn key_variables(&self) -> Option<Box<[u16]>> {
        let Partition::Keys(columns) = self else { return None };
        columns
            .iter()
            .map(|ops| match &ops[..] {
                [Op::Eq(Term::Variable(number))] => Some(*number),
                _ => None,
            })
            .collect()
    }
}

fn keys(
    columns: &[Ops],
    schema: &TableSchema,
    env: Env<'_>,
    write: bool,
) -> Result<SmallVec<[DecoratedKey; 1]>, Error> {
    // Fast path: most requests select one partition by one value.
    if let [ops] = columns
        && let [Op::Eq(term)] = &ops[..]
        && let [column] = &schema.partition_key[..]
    {
        let Some(value) = bound(term, &column.name, env, write)? else { return Ok(SmallVec::new()) };
        check_length(&value)?;
        if write && value.is_empty() {
            return Err(empty_key());
        }
        return Ok(SmallVec::from_buf([DecoratedKey::new(value)]));
    }
    let mut components: SmallVec<[SmallVec<[Bytes; 1]>; 4]> = SmallVec::new();
    for (ops, column) in columns.iter().zip(&schema.partition_key) {
        let values = values(ops, &column.ty, &column.name, Sameness::Bytes, env, write)?;
        for value in &values {
            check_length(value)?;
        }
        components.push(values);
    }
    if let [values] = &mut components[..] {
        combinations(std::iter::once(values.len()), MAX_PARTITION_KEYS, "partition")?;
        if write && values.iter().any(|value| value.is_empty()) {
            return Err(empty_key());
        }
        return Ok(std::mem::take(values).into_iter().map(DecoratedKey::new).collect());
    }
    let total = combinations(components.iter().map(|values| values.len()), MAX_PARTITION_KEYS, "partition")?;
    let mut out = SmallVec::with_capacity(total);
    for mut number in 0..total {
        let mut chosen: SmallVec<[&[u8]; 4]> = SmallVec::new();
        for values in components.iter().rev() {
            chosen.push(&values[number % values.len()]);
            number /= values.len();
        }
        chosen.reverse();
        let mut key = Vec::with_capacity(chosen.iter().map(|component| component.len() + 3).sum());
        encode_partition_key(&chosen, &mut key);
        if key.len() > MAX_KEY_BYTES {
            check_length(&key)?;
        }
        out.push(DecoratedKey::new(key.into()));
    }
    Ok(out)
}

#[cold]
fn empty_key() -> Error {
    Error::invalid("Key may not be empty")
}

const NAME: &str = "partition key token";

fn token_range(ops: &[Op], env: Env<'_>) -> Result<Partitions, Error> {
    let mut range = PartitionRange::FULL;
    for op in ops {
        let term = match op {
            Op::Eq(term) | Op::Lower(term, _) | Op::Upper(term, _) => term,
            Op::In(_) => return Err(Error::invalid("IN restrictions are not supported on the token function")),
        };
        let token = match term.evaluate(env)? {
            Val::Unset => return Err(unset(NAME)),
            Val::Null => return Err(null(NAME)),
            value => value.as_slice().and_then(|bytes| bytes.try_into().ok()).map(i64::from_be_bytes),
        };
        let token = Token(token.ok_or_else(|| Error::invalid("Invalid token value"))?);
        if let Op::Eq(_) | Op::Lower(..) = op {
            let after = matches!(op, Op::Lower(_, false));
            range.start = range.start.max(RingCut { token, key: None, after });
        }
        // No key has the lowest token. As an upper bound it means the end of the ring; drivers end
        // their ranges there.
        let to_the_end = token == Token::MIN && matches!(op, Op::Upper(..));
        if let (Op::Eq(_) | Op::Upper(..), false) = (op, to_the_end) {
            let after = !matches!(op, Op::Upper(_, false));
            range.end = range.end.min(RingCut { token, key: None, after });
        }
    }
    if range.is_empty() {
        return Ok(Partitions::Keys(SmallVec::new()));
    }
    Ok(Partitions::Range(range))
}
