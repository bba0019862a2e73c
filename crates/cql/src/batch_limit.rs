//! Rate limits of batches with statements that read before they write.
//!
//! The coordinator counts the partitions of a batch when it writes them. A statement that reads its
//! partition first would have read it by then. In such a batch, each partition is counted as soon
//! as it is known, before it is read. If the replicas must decide, they are asked at once.

use crate::api::BatchKind;
use crate::error::Error;
use crate::modify::Modify;
use crate::modify::json::JsonValues;
use crate::request::Request;
use crate::term::Env;
use bytes::Bytes;
use coordinator::{RequestOptions, WriteKind};
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
    /// Decides where the partitions of a batch are counted.
    pub async fn new<'a>(
        parts: impl Iterator<Item = (&'a Modify, Env<'a>)> + Clone,
        kind: BatchKind,
        request: &Request<'_>,
    ) -> Result<BatchLimit, Error> {
        let reads_first = parts.clone().any(|(modify, _)| modify.read_first.is_some() && is_limited(modify));
        // Boxed: few batches need it.
        let is_early = reads_first && !(kind == BatchKind::Logged && Box::pin(has_several(parts, request)).await?);
        Ok(BatchLimit { is_early, counted: HashSet::default() })
    }

    /// Counts those of a statement's partitions that no earlier statement has, and sets the mode of
    /// the batch.
    ///
    /// # Errors
    ///
    /// [`Error::RateLimit`], and the errors of `Coordinator::write`.
    pub async fn count(
        &mut self,
        modify: &Modify,
        keys: &[DecoratedKey],
        kind: WriteKind,
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
        let mode = modify.apply_rate_limit(&new, request)?;
        // Partitions that the replicas have counted must not be counted again.
        if options.context.rate_limit != RateLimitMode::ChargeOnly || matches!(mode, RateLimitMode::Deferred { .. }) {
            options.context.rate_limit = mode;
        }
        // Boxed: few batches need it.
        Box::pin(request.ask_replicas(&modify.schema, &new, kind, options)).await
    }
}

fn is_limited(modify: &Modify) -> bool {
    modify.schema.rate_limits().limits_writes()
}

/// Whether a batch has several partitions.
async fn has_several<'a>(
    parts: impl Iterator<Item = (&'a Modify, Env<'a>)>,
    request: &Request<'_>,
) -> Result<bool, Error> {
    let mut first = None;
    for (modify, env) in parts {
        // The values are bound again when the statement is executed: all of them together could be
        // large.
        let json = match &modify.json {
            Some(json) => Some(json.bind(env, request).await?),
            None => None,
        };
        for key in modify.keys(json.as_ref().map_or(env, JsonValues::env))? {
            let partition = (modify.schema.id, key.key);
            if first.get_or_insert_with(|| partition.clone()) != &partition {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
