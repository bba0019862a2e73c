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
pub struct EvaluatedOperations {
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
    pub async fn evaluate_operations(
        &self,
        env: Env<'_>,
        pace: &Pace<'_>,
    ) -> Result<Option<EvaluatedOperations>, Error> {
        if !self.slow {
            return Ok(None);
        }
        let mut used = UsedBytes::default();
        let operations = all_evaluated(&self.operations, env, pace, &mut used).await?;
        let statics = all_evaluated(&self.statics, env, pace, &mut used).await?;
        Ok(Some(EvaluatedOperations { operations, statics }))
    }
}

async fn all_evaluated(
    operations: &[Operation],
    env: Env<'_>,
    pace: &Pace<'_>,
    used: &mut UsedBytes,
) -> Result<Box<[Operation]>, Error> {
    let mut evaluated = Vec::with_capacity(operations.len());
    for operation in operations {
        let change = operation.change.evaluated(env, pace, used).await?;
        evaluated.push(Operation { column: operation.column, ty: operation.ty.clone(), change });
    }
    Ok(evaluated.into())
}

impl Change {
    async fn evaluated(&self, env: Env<'_>, pace: &Pace<'_>, used: &mut UsedBytes) -> Result<Change, Error> {
        let mut evaluated = async |term: &Term| term.evaluated(env, pace, &mut *used).await;
        Ok(match self {
            Change::Delete => Change::Delete,
            Change::DeleteField(field) => Change::DeleteField(*field),
            Change::Set(term) => Change::Set(evaluated(term).await?),
            Change::Append(term) => Change::Append(evaluated(term).await?),
            Change::Prepend(term) => Change::Prepend(evaluated(term).await?),
            Change::Add(term) => Change::Add(evaluated(term).await?),
            Change::Remove(term) => Change::Remove(evaluated(term).await?),
            Change::Discard(term) => Change::Discard(evaluated(term).await?),
            Change::DeleteIndex(term) => Change::DeleteIndex(evaluated(term).await?),
            Change::DeleteKey(term) => Change::DeleteKey(evaluated(term).await?),
            Change::SetIndex(index, term) => {
                Change::SetIndex(Box::new(evaluated(index).await?), evaluated(term).await?)
            }
            Change::SetKey(key, term) => Change::SetKey(Box::new(evaluated(key).await?), evaluated(term).await?),
            Change::SetField(field, term) => Change::SetField(*field, evaluated(term).await?),
            Change::Count(term, down) => Change::Count(evaluated(term).await?, *down),
        })
    }
}
