//! Applies rate limits to a statement as soon as its partitions are known. So a refusal costs
//! little: no row, no mutation and no query is made for it.
//!
//! Left to the coordinator are batches, and pages after the first one.
//!
//! Callers check first whether the table has limits, and these functions are not inlined: tables
//! without limits pay for one branch.

use crate::error::Error;
use crate::rate_limit_error::RateLimitError;
use crate::request::{Request, write_error};
use crate::restrictions::Partitions;
use coordinator::{RequestOptions, WriteKind};
use model::TableSchema;
use model::key::DecoratedKey;
use model::mutation::MutationBuilder;
use model::token::Token;
use replica::rate_limit::only_token;
use replica::{Class, LimitKind, RateLimitMode};
use rt::time::Duration;

impl Request<'_> {
    /// Options for the coordinator of a request that was decided so.
    ///
    /// # Errors
    ///
    /// The same as of [`Request::options`].
    pub fn limited_options(&self, timeout: Duration, rate_limit: RateLimitMode) -> Result<RequestOptions, Error> {
        let mut options = self.options(timeout)?;
        options.context.rate_limit = rate_limit;
        Ok(options)
    }

    /// Decides on the first page of partitions. [`RateLimitMode::Off`]: it is not limited, or not
    /// decided yet.
    ///
    /// # Errors
    ///
    /// [`Error::RateLimit`]
    #[inline(never)]
    pub fn limit_read(&self, schema: &TableSchema, partitions: &Partitions) -> Result<RateLimitMode, Error> {
        if self.params.paging_state.is_some() {
            return Ok(RateLimitMode::Off);
        }
        match partitions {
            Partitions::Keys(keys) => self.limit(schema, keys.iter().map(|key| key.token), LimitKind::Read),
            Partitions::Range(range) => match only_token(range) {
                Some(token) => self.limit(schema, std::iter::once(token), LimitKind::Read),
                None => Ok(RateLimitMode::Off),
            },
        }
    }

    /// Decides on a write of partitions. [`RateLimitMode::Off`]: it is not limited after all.
    ///
    /// # Errors
    ///
    /// [`Error::RateLimit`]
    #[inline(never)]
    pub fn limit_write(&self, schema: &TableSchema, keys: &[DecoratedKey]) -> Result<RateLimitMode, Error> {
        self.limit(schema, keys.iter().map(|key| key.token), LimitKind::Write)
    }

    /// Lets the replicas decide on a write of partitions if this coordinator could not, before
    /// anything is read for it: sends mutations that change nothing. The write itself is then not
    /// counted again.
    ///
    /// # Errors
    ///
    /// [`Error::RateLimit`], and the errors of `Coordinator::write`.
    pub async fn ask_replicas(
        &self,
        schema: &TableSchema,
        keys: &[DecoratedKey],
        kind: WriteKind,
        options: &mut RequestOptions,
    ) -> Result<(), Error> {
        if !matches!(options.context.rate_limit, RateLimitMode::Deferred { .. }) {
            return Ok(());
        }
        let nothing = |key: &DecoratedKey| {
            (MutationBuilder::new(schema.id, schema.version, &key.key).finish(schema), key.clone())
        };
        let asked = self.coordinator.write(keys.iter().map(nothing).collect(), kind, options).await;
        asked.map_err(|error| write_error(error, schema, kind))?;
        options.context.rate_limit = options.context.rate_limit.continued();
        Ok(())
    }

    /// Lets this coordinator refuse a write of hot partitions, before anything is read for it.
    ///
    /// # Errors
    ///
    /// [`Error::RateLimit`]
    pub fn protect_early(
        &self,
        schema: &TableSchema,
        keys: &[DecoratedKey],
        kind: WriteKind,
        options: &mut RequestOptions,
    ) -> Result<(), Error> {
        match self.metadata().table_by_id(schema.id) {
            Some(table) => {
                let protected = self.coordinator.protect_early(table, keys, options);
                protected.map_err(|error| write_error(error, schema, kind))
            }
            // A table that was dropped is noticed later.
            None => Ok(()),
        }
    }

    #[inline]
    fn limit(
        &self,
        schema: &TableSchema,
        tokens: impl Iterator<Item = Token>,
        kind: LimitKind,
    ) -> Result<RateLimitMode, Error> {
        let metadata = self.metadata();
        let table = metadata.table_by_id(schema.id).filter(|_| self.class() == Class::User);
        // A table that was dropped is noticed later.
        let Some(table) = table else { return Ok(RateLimitMode::Off) };
        let decided = self.coordinator.limit_early(table, tokens, kind, self.trace.as_deref());
        decided.map_err(|refused| Error::RateLimit(RateLimitError::by_coordinator(schema, refused)))
    }
}
