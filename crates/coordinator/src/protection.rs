//! Refuses operations of hot partitions at the coordinator, while its shard is overloaded
//! ([`replica::hot`]). So a refused operation reaches no replica.
//!
//! This shard decides for the partitions that it owns. Other replicas decide for themselves.

use super::rate_limit::tokens_of;
use super::read::{PageRequest, Query};
use super::{Coordinator, CoordinatorError, RequestOptions};
use cluster::metadata::Table;
use model::id::TableId;
use model::key::DecoratedKey;
use model::token::Token;
use replica::{LimitKind, Mutations, PartitionId};

impl Coordinator {
    /// Decides about a page of partitions that this shard owns.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::RateLimited`]
    #[cold]
    pub(super) fn protect_read(
        &self,
        query: &Query,
        page: &PageRequest,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        if !options.context.may_be_protected_against() {
            return Ok(());
        }
        let Some(tokens) = tokens_of(query, page) else { return Ok(()) };
        let own = tokens.iter().filter(|token| self.owns(&query.table, **token));
        self.protect(own.map(|token| (query.table.schema.id, *token)), LimitKind::Read, options)
    }

    /// Decides about a write, if this shard owns all of its partitions.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::RateLimited`]
    #[cold]
    pub(super) fn protect_write(
        &self,
        mutations: &Mutations,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        let metadata = self.metadata();
        let owns = |table, token| metadata.table_by_id(table).is_some_and(|table| self.owns(table, token));
        let is_own = mutations.iter().all(|(mutation, key)| owns(mutation.table(), key.token));
        if !options.context.may_be_protected_against() || !is_own {
            return Ok(());
        }
        let partitions = mutations.iter().map(|(mutation, key)| (mutation.table(), key.token));
        self.protect(partitions, LimitKind::Write, options)
    }

    /// Decides about a write before something is read for it, if this shard owns its partitions.
    /// Once accepted, the write is not refused later. A write of a table with limits is decided
    /// when it is sent.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::RateLimited`]
    pub fn protect_early(
        &self,
        table: &Table,
        keys: &[DecoratedKey],
        options: &mut RequestOptions,
    ) -> Result<(), CoordinatorError> {
        let decides = self.replica.protects_itself() && options.is_undecided();
        if !decides || !keys.iter().all(|key| self.owns(table, key.token)) {
            return Ok(());
        }
        let partitions = keys.iter().map(|key| (table.schema.id, key.token));
        self.protect(partitions, LimitKind::Write, options)?;
        *options = options.exempt();
        Ok(())
    }

    fn protect(
        &self,
        partitions: impl Iterator<Item = (TableId, Token)>,
        kind: LimitKind,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        for (table, token) in partitions {
            self.replica.protect(PartitionId { table, token }, kind).map_err(|refused| {
                options.context.trace("Hot partition protection: refused by the coordinator");
                self.rate_limited(refused, true)
            })?;
        }
        Ok(())
    }
}
