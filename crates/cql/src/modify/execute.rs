//! Executes an INSERT, UPDATE or DELETE outside of a batch.

use super::build::Inputs;
use super::evaluated::EvaluatedOperations;
use super::read_first::read_first;
use super::{Modify, OVERHEAD, ReadFirst, Room, Stamp};
use crate::api::{BoundValue, ResultKind, StatementResult};
use crate::attributes::check_timestamp;
use crate::error::Error;
use crate::footprint::Footprint;
use crate::pace::Pace;
use crate::request::{Config, Request, write_error, write_type};
use crate::restrictions::Rows;
use crate::term::Env;
use coordinator::{RequestOptions, WriteKind};
use model::key::DecoratedKey;
use model::time::{expiry, stored_seconds};
use replica::{LargeKinds, Mutations, RateLimitMode};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::rc::Rc;

/// The bytes that a statement may write by repeating its values, before it must wait for
/// [`Request::turn`].
pub const LARGE_EXPANSION: usize = 1 << 20;

/// The mutations of more partitions than this are built with pauses.
const MANY_KEYS: usize = 16;

/// The keys of a write's partitions.
pub type Keys = SmallVec<[DecoratedKey; 1]>;

impl Modify {
    /// The timestamp, time and TTL of a write. `default` is the timestamp without USING TIMESTAMP,
    /// `now` the clock in microseconds. The second result is true if the TTL was cut at the last
    /// second that can be stored.
    pub fn stamp(&self, env: Env<'_>, default: i64, now: i64, request: &Request<'_>) -> Result<(Stamp, bool), Error> {
        let restricted = request.config.restrict_future_timestamp;
        let timestamp = self.attributes.timestamp(env, now, restricted)?.unwrap_or(default);
        let ttl = match self.attributes.ttl(env)? {
            Some(ttl) => ttl,
            None => self.schema.options.default_time_to_live,
        };
        let seconds = request.seconds(now);
        let (expiry, capped) = if ttl == 0 { (0, false) } else { expiry(seconds, ttl) };
        let mutation_bytes = request.config.mutation_bytes;
        Ok((Stamp { timestamp, now: stored_seconds(seconds), ttl, expiry, mutation_bytes }, capped))
    }

    /// The warning for a TTL that was cut.
    pub fn capped_warning(&self) -> String {
        format!(
            "The time to live of a write to {}.{} ends after 2038-01-19T03:14:06Z, the last moment that can be stored; it was \
             shortened to end then.",
            self.schema.keyspace, self.schema.name
        )
    }

    /// The approximate memory of a statement that writes its values to several rows; 0 if it writes
    /// them once.
    #[inline]
    pub fn expansion(&self, keys: &[DecoratedKey], rows: &Rows, env: Env<'_>) -> usize {
        let rows = match rows {
            Rows::Keys(rows) => rows.len().max(1),
            Rows::Ranges(ranges) => ranges.len().max(1),
        };
        match keys.len() * rows {
            0 | 1 => 0,
            places => places.saturating_mul(self.values_bytes(env) + OVERHEAD),
        }
    }

    /// The approximate bytes of the values of a row.
    #[cold]
    fn values_bytes(&self, env: Env<'_>) -> usize {
        self.operations.footprint() + self.statics.footprint() + env.values.iter().map(BoundValue::len).sum::<usize>()
    }

    /// Evaluates the operations with pauses.
    pub(crate) async fn evaluate_paced(
        &self,
        env: Env<'_>,
        options: &RequestOptions,
        kind: WriteKind,
    ) -> Result<Option<EvaluatedOperations>, Error> {
        self.evaluate_operations(env, &Pace::of_write(options, &self.schema, write_type(kind))).await
    }

    /// Builds the mutations of many partitions, with pauses.
    async fn make_paced(
        &self,
        keys: Keys,
        rows: &Rows,
        inputs: &Inputs<'_>,
        config: &Config,
        options: &RequestOptions,
        kind: WriteKind,
    ) -> Result<Mutations, Error> {
        let pace = Pace::of_write(options, &self.schema, write_type(kind));
        let mut room = Room::of(config);
        let mut mutations = Mutations::new();
        for key in keys {
            if let Some(mutation) = self.mutation(&key, rows, inputs, &mut room)? {
                pace.worked(OVERHEAD + mutation.as_bytes().len()).await?;
                mutations.push((mutation, key));
            }
        }
        Ok(mutations)
    }

    /// Builds the mutations of a statement that reads first.
    async fn read_and_make(
        &self,
        wanted: &ReadFirst,
        keys: Keys,
        rows: &Rows,
        inputs: &Inputs<'_>,
        request: &Request<'_>,
        (kind, options): (WriteKind, &mut RequestOptions),
    ) -> Result<Mutations, Error> {
        request.ask_replicas(&self.schema, &keys, kind, options).await?;
        request.protect_early(&self.schema, &keys, kind, options)?;
        let mut room = Room::of(request.config);
        let mut mutations = Mutations::new();
        for key in keys {
            let prior = read_first(self, wanted, &key, rows, inputs.stamp.now, request, options).await?;
            let inputs = Inputs { prior: Some(&prior), ..*inputs };
            mutations.extend(self.mutation(&key, rows, &inputs, &mut room)?.map(|mutation| (mutation, key)));
        }
        Ok(mutations)
    }

    /// Checks mutations against the large-data guardrails. An error if one is refused.
    #[cold]
    fn check_large_data(&self, mutations: &Mutations, config: &Config) -> Result<LargeKinds, Error> {
        let guardrails = &config.guardrails;
        let mut large = LargeKinds::default();
        for (mutation, _) in mutations {
            large = large.with(guardrails.large_data.check(&self.schema, mutation, &guardrails.violations)?);
        }
        Ok(large)
    }

    /// Checks the consistency level. Returns the warning about it.
    ///
    /// # Errors
    ///
    /// A level that is invalid or not allowed.
    #[inline]
    pub fn check_level(&self, request: &Request<'_>) -> Result<Option<String>, Error> {
        request.check_write_level()?;
        let warning = request.config.guardrails.check_write_level(request.params.consistency)?;
        if self.counter {
            request.check_counter_level(&self.schema.name)?;
        }
        Ok(warning)
    }

    /// Evaluates the partitions. This and [`Modify::apply_rate_limit`] are apart from the
    /// execution: a refusal costs less than the future of a write. The partitions of INSERT JSON
    /// are evaluated later, because its text is.
    #[inline]
    pub fn partitions(&self, env: Env<'_>) -> Result<Keys, Error> {
        match self.json {
            Some(_) => Ok(SmallVec::new()),
            None => self.keys(env),
        }
    }

    /// Applies rate limits to the partitions, if the table has some.
    ///
    /// # Errors
    ///
    /// [`Error::RateLimit`]
    #[inline]
    pub fn apply_rate_limit(&self, keys: &[DecoratedKey], request: &Request<'_>) -> Result<RateLimitMode, Error> {
        match self.schema.rate_limits().limits_writes() {
            false => Ok(RateLimitMode::Off),
            true => request.limit_write(&self.schema, keys),
        }
    }

    /// Executes the statement on these partitions. `rate_limit` is the decision of
    /// [`Modify::apply_rate_limit`], `warning` the result of [`Modify::check_level`].
    pub async fn execute(
        &self,
        mut keys: Keys,
        mut rate_limit: RateLimitMode,
        warning: Option<String>,
        env: Env<'_>,
        request: &Request<'_>,
    ) -> Result<StatementResult, Error> {
        let json = match &self.json {
            Some(json) => Some(Box::pin(json.bind(env, request)).await?),
            None => None,
        };
        let env = match &json {
            Some(json) => {
                keys = self.keys(json.env())?;
                rate_limit = self.apply_rate_limit(&keys, request)?;
                json.env()
            }
            None => env,
        };
        let config = request.config;
        let (kind, timeout) = match self.counter {
            true => (WriteKind::Counter, config.counter_write_timeout),
            false => (WriteKind::Simple, config.write_timeout),
        };
        let now = rt::time::wall_micros();
        let default = default_timestamp(request)?;
        let (stamp, capped) = self.stamp(env, default, now, request)?;
        let mut options = request.limited_options(self.attributes.timeout(env, timeout)?, rate_limit)?;
        let deadline = options.context.deadline;
        let rows = self.rows(env)?;
        // Boxed, and held until the write is done.
        let _turn = match self.expansion(&keys, &rows, env) > LARGE_EXPANSION {
            true => Some(Box::pin(request.turn(&deadline)).await?),
            false => None,
        };
        let mut hint = None;
        if let [key] = &keys[..]
            && request.client.tablets_routing.get()
            && self.partition.key_variables().is_some()
        {
            let table = request.metadata().table_by_id(self.schema.id).cloned();
            hint = table.and_then(|table| request.coordinator.tablet_hint(&table, key.token));
        }
        let mut inputs = Inputs { env, stamp: &stamp, prior: None, evaluated: None };
        let evaluated;
        if self.slow {
            evaluated = Box::pin(self.evaluate_paced(env, &options, kind)).await?;
            inputs.evaluated = evaluated.as_ref();
        }
        let mut mutations = Mutations::new();
        match &self.read_first {
            None if keys.len() > MANY_KEYS => {
                mutations = Box::pin(self.make_paced(keys, &rows, &inputs, config, &options, kind)).await?;
            }
            None => {
                let mut room = Room::of(config);
                for key in keys {
                    if let Some(mutation) = self.mutation(&key, &rows, &inputs, &mut room)? {
                        mutations.push((mutation, key));
                    }
                }
            }
            // Boxed: few statements read first, and otherwise every statement's future would be as
            // large as the future of a read.
            Some(wanted) => {
                mutations =
                    Box::pin(self.read_and_make(wanted, keys, &rows, &inputs, request, (kind, &mut options))).await?;
            }
        }
        let mut large = LargeKinds::default();
        if self.checks_large_data {
            large = self.check_large_data(&mutations, config)?;
        }
        if !mutations.is_empty() {
            debug_assert!(
                mutations.iter().all(|(mutation, _)| mutation.table() == self.schema.id),
                "a statement changes its own table"
            );
            debug_assert!(is_each_once(&mutations), "a statement has one mutation of each partition");
            options.context.large_data = self.checks_large_data.then(Rc::default);
            let written = request.coordinator.write(mutations, kind, &options).await;
            written.map_err(|error| write_error(error, &self.schema, kind))?;
            if let Some(found) = &options.context.large_data {
                large = large.with(found.get());
            }
        }
        let mut answer = StatementResult::new(ResultKind::Void);
        answer.tablet = hint;
        answer.warnings.extend(warning);
        answer.warnings.extend(config.guardrails.large_data.warning(large));
        if capped {
            answer.warnings.push(self.capped_warning());
        }
        Ok(answer)
    }
}

/// The timestamp of writes without USING TIMESTAMP: the timestamp of the request, else the shard's
/// clock. `restrict_future_timestamp` applies to USING TIMESTAMP only.
pub fn default_timestamp(request: &Request<'_>) -> Result<i64, Error> {
    match request.params.timestamp {
        Some(timestamp) => {
            check_timestamp(timestamp)?;
            Ok(timestamp)
        }
        None => Ok(request.coordinator.timestamp()),
    }
}

/// Whether each mutation is of its key, and no two are of the same partition.
pub(crate) fn is_each_once(mutations: &Mutations) -> bool {
    let mut seen = BTreeSet::new();
    mutations.iter().all(|(mutation, key)| mutation.key() == key.key && seen.insert((mutation.table(), &key.key)))
}
