//! Rate limits of batches with statements that read before they write.
//!
//! The coordinator counts the partitions of a batch when it writes them. A statement that reads its
//! partition first would have read it by then. In such a batch, each partition is counted as soon
//! as it is known, before it is read.

use crate::api::BatchKind;
use crate::error::Error;
use crate::modify::Modify;
use crate::request::Request;
use crate::term::Env;
use bytes::Bytes;
use coordinator::RequestOptions;
use model::TableSchema;
use model::id::TableId;
use model::key::DecoratedKey;
use replica::RateLimitMode;
use rt::hash::HashSet;

/// Counts the partitions of a batch, each once.
pub struct BatchLimit {
    /// Whether partitions are counted here. Otherwise the coordinator counts them.
    is_early: bool,
    counted: HashSet<(TableId, Bytes)>,
}

impl BatchLimit {
    /// Decides who counts the partitions of a batch.
    pub fn new<'a>(
        parts: impl Iterator<Item = (&'a Modify, Env<'a>)> + Clone,
        kind: BatchKind,
    ) -> Result<BatchLimit, Error> {
        let reads_first = parts.clone().any(|(modify, _)| modify.read_first.is_some() && is_limited(modify));
        let is_early = reads_first && !(kind == BatchKind::Logged && has_several(parts)?);
        Ok(BatchLimit { is_early, counted: HashSet::default() })
    }

    /// Counts those of a statement's partitions that no earlier statement has, and sets the mode of
    /// the batch.
    ///
    /// # Errors [`Error::RateLimit`]
    pub fn count(
        &mut self,
        modify: &Modify,
        keys: &[DecoratedKey],
        request: &Request<'_>,
        options: &mut RequestOptions,
    ) -> Result<(), Error> {
        if !self.is_early || !is_limited(modify) {
            return Ok(());
        }
        let new = keys.iter().filter(|key| self.counted.insert((modify.schema.id, key.key.clone())));
        let new: Vec<DecoratedKey> = new.cloned().collect();
        if new.is_empty() {
            return Ok(());
        }
        let mode = modify.limit(&new, request)?;
        // The replicas decide on all partitions if they must on one.
        if !matches!(options.context.rate_limit, RateLimitMode::Deferred { .. }) {
            options.context.rate_limit = mode;
        }
        Ok(())
    }

    /// Whether a mutation of a table is sent even if it changes nothing, because its replicas may
    /// have to decide.
    pub fn needs_replicas(&self, schema: &TableSchema) -> bool {
        self.is_early && schema.rate_limits().limits_writes()
    }
}

fn is_limited(modify: &Modify) -> bool {
    modify.schema.rate_limits().limits_writes()
}

/// Whether a batch has several partitions. Those of JSON texts, which are not read yet, do not
/// count.
fn has_several<'a>(parts: impl Iterator<Item = (&'a Modify, Env<'a>)>) -> Result<bool, Error> {
    let mut first = None;
    for (modify, env) in parts.filter(|(modify, _)| modify.json.is_none()) {
        for key in modify.keys(env)? {
            let partition = (modify.schema.id, key.key);
            if first.get_or_insert_with(|| partition.clone()) != &partition {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
