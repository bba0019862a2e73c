//! The values of a statement, evaluated with pauses before its mutations are built.
//!
//! A mutation is built without a pause. A statement with calls or with many operations could hold
//! the shard for long. So its terms are evaluated before, one after the other.

use super::Modify;
use super::operation::{Change, Operation};
use crate::error::Error;
use crate::pace::Pace;
use crate::term::{Env, Term, UsedBytes};

/// A statement of more operations than this is evaluated with pauses.
const MANY_OPERATIONS: usize = 32;

/// The operations of a statement with evaluated terms.
pub struct Settled {
    /// On regular columns.
    pub operations: Box<[Operation]>,
    /// On static columns.
    pub statics: Box<[Operation]>,
}

/// Whether these operations may take long to evaluate.
pub(super) fn are_slow(operations: &[Operation]) -> bool {
    operations.len() > MANY_OPERATIONS
        || operations.iter().any(|operation| operation.change.terms().any(Term::has_call))
}

impl Modify {
    /// Evaluates the operations with pauses, if they may take long.
    pub async fn settled(&self, env: Env<'_>, pace: &Pace<'_>) -> Result<Option<Settled>, Error> {
        if !self.slow {
            return Ok(None);
        }
        let mut used = UsedBytes::default();
        let operations = all_settled(&self.operations, env, pace, &mut used).await?;
        let statics = all_settled(&self.statics, env, pace, &mut used).await?;
        Ok(Some(Settled { operations, statics }))
    }
}

async fn all_settled(
    operations: &[Operation],
    env: Env<'_>,
    pace: &Pace<'_>,
    used: &mut UsedBytes,
) -> Result<Box<[Operation]>, Error> {
    let mut settled = Vec::with_capacity(operations.len());
    for operation in operations {
        let change = operation.change.settled(env, pace, used).await?;
        settled.push(Operation { column: operation.column, ty: operation.ty.clone(), change });
    }
    Ok(settled.into())
}

impl Change {
    async fn settled(&self, env: Env<'_>, pace: &Pace<'_>, used: &mut UsedBytes) -> Result<Change, Error> {
        let mut settled = async |term: &Term| term.settled(env, pace, &mut *used).await;
        Ok(match self {
            Change::Delete => Change::Delete,
            Change::DeleteField(field) => Change::DeleteField(*field),
            Change::Set(term) => Change::Set(settled(term).await?),
            Change::Append(term) => Change::Append(settled(term).await?),
            Change::Prepend(term) => Change::Prepend(settled(term).await?),
            Change::Add(term) => Change::Add(settled(term).await?),
            Change::Remove(term) => Change::Remove(settled(term).await?),
            Change::Discard(term) => Change::Discard(settled(term).await?),
            Change::DeleteIndex(term) => Change::DeleteIndex(settled(term).await?),
            Change::DeleteKey(term) => Change::DeleteKey(settled(term).await?),
            Change::SetIndex(index, term) => Change::SetIndex(Box::new(settled(index).await?), settled(term).await?),
            Change::SetKey(key, term) => Change::SetKey(Box::new(settled(key).await?), settled(term).await?),
            Change::SetField(field, term) => Change::SetField(*field, settled(term).await?),
            Change::Count(term, down) => Change::Count(settled(term).await?, *down),
        })
    }
}
