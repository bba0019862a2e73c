//! Decides how a request is counted against the rate limits of its tables.
//!
//! If this shard owns all limited partitions of a request, it counts and decides alone: a refused
//! request reaches no replica. Otherwise every replica counts and decides, all of them with the
//! same random number. A request is counted once: parts that the coordinator reads by itself,
//! repetitions with newer metadata, repairs and hints are exempt. The bytes of such parts are
//! charged all the same.

use super::read::{PageRequest, Partitions, Query};
use super::resume::Start;
use super::{Coordinator, CoordinatorError, RequestOptions, WriteKind, count};
use cluster::metadata::{Metadata, Table};
use cluster::tablets::TabletReplica;
use model::token::Token;
use replica::rate_limit::only_token;
use replica::{Class, Context, LimitKind, Mutations, RateLimitMode, RateLimited};
use smallvec::SmallVec;

impl RequestOptions {
    /// The same options for a request with this mode.
    fn limited(&self, rate_limit: RateLimitMode) -> RequestOptions {
        let context = Context { rate_limit, ..self.context.clone() };
        RequestOptions { context, consistency: self.consistency }
    }

    /// The same options for work that is not counted.
    pub(super) fn exempt(&self) -> RequestOptions {
        self.limited(RateLimitMode::Exempt)
    }

    /// Whether the request can be limited, and nothing has decided yet.
    fn is_undecided(&self) -> bool {
        self.context.class == Class::User && self.context.rate_limit == RateLimitMode::Off
    }
}

/// The tokens of the partitions that a page reads, and how many of them count: the first ones.
/// None: the page is not limited.
pub(super) fn tokens_of(query: &Query, page: &PageRequest) -> Option<(SmallVec<[Token; 4]>, usize)> {
    let keys = match &query.partitions {
        Partitions::Range(range) => return Some((SmallVec::from_slice(&[only_token(range)?]), 1)),
        Partitions::Keys(keys) => keys,
    };
    let (mut from, mut counted) = (0, keys.len());
    if let Some(state) = &page.state {
        // All keys were counted for the first page.
        let start = Start::after(query, state.position.clone(), state.rows_in_last);
        let at = keys.iter().position(|key| *key == start.key)?;
        (from, counted) = (at + usize::from(!start.inside), usize::from(start.inside));
    }
    Some((keys[from..].iter().map(|key| key.token).collect(), counted))
}

/// The options of a limited page.
pub(super) struct LimitedPage {
    /// The options of its first part.
    pub first: RequestOptions,
    /// The options of its other parts, which are not counted. None: those of a page without limits.
    pub rest: Option<RequestOptions>,
}

impl Coordinator {
    /// The options of a page of a table with a limit of reads. None: the page is not limited.
    ///
    /// # Errors [`CoordinatorError::RateLimited`]
    #[cold]
    pub(super) fn limit_read(
        &self,
        query: &Query,
        page: &PageRequest,
        options: &RequestOptions,
    ) -> Result<Option<Box<LimitedPage>>, CoordinatorError> {
        let schema = &query.table.schema;
        if !options.is_undecided() {
            return Ok(None);
        }
        let rest = schema.rate_limits().read_kib.map(|_| options.limited(RateLimitMode::ChargeOnly));
        if page.exempt {
            return Ok(rest.map(|rest| Box::new(LimitedPage { first: rest.clone(), rest: Some(rest) })));
        }
        let Some((tokens, counted)) = tokens_of(query, page) else { return Ok(None) };
        let draw = rt::random::u64() as u32;
        let mode = if tokens.iter().all(|token| self.owns(&query.table, *token)) {
            let mut result = Ok(());
            for token in &tokens[..counted] {
                result = result.and(self.replica.limit(*token, schema, LimitKind::Read, Some(draw), &options.context));
            }
            self.decided(result, options)?
        } else {
            RateLimitMode::Enforce { draw }
        };
        Ok(Some(Box::new(LimitedPage { first: limited_as(mode, options), rest })))
    }

    /// The options of a write of tables of which some have a limit of writes. None: the write is
    /// not limited.
    ///
    /// # Errors [`CoordinatorError::RateLimited`]
    #[cold]
    pub(super) fn limit_write(
        &self,
        metadata: &Metadata,
        mutations: &Mutations,
        kind: WriteKind,
        options: &RequestOptions,
    ) -> Result<Option<Box<RequestOptions>>, CoordinatorError> {
        // A logged batch must be applied entirely.
        if !options.is_undecided() || kind == WriteKind::LoggedBatch && mutations.len() > 1 {
            return Ok(None);
        }
        let table_of = |at: usize| metadata.table_by_id(mutations[at].0.table()).ok_or(CoordinatorError::NoSuchTable);
        let (mut is_limited, mut owns_all) = (false, true);
        for (at, (_, key)) in mutations.iter().enumerate() {
            let table = table_of(at)?;
            if table.schema.rate_limits().limits_writes() {
                is_limited = true;
                owns_all &= self.owns(table, key.token);
            }
        }
        if !is_limited {
            return Ok(None);
        }
        let draw = rt::random::u64() as u32;
        let mode = if owns_all {
            let mut result = Ok(());
            for (at, (_, key)) in mutations.iter().enumerate() {
                let schema = &table_of(at)?.schema;
                if schema.rate_limits().limits_writes() {
                    let (kind, draw) = (LimitKind::Write, Some(draw));
                    result = result.and(self.replica.limit(key.token, schema, kind, draw, &options.context));
                }
            }
            self.decided(result, options)?
        } else {
            RateLimitMode::Enforce { draw }
        };
        Ok(Some(Box::new(limited_as(mode, options))))
    }

    /// Whether this shard is a replica of a partition: then it counts the partition's operations.
    pub(super) fn owns(&self, table: &Table, token: Token) -> bool {
        let own = TabletReplica { host: self.host, shard: rt::shard::this().0 };
        table.tablets.read_set(table.tablets.tablet_of(token)).contains(&own)
    }

    /// The mode of a request that this shard has counted.
    fn decided(
        &self,
        counted: Result<(), RateLimited>,
        options: &RequestOptions,
    ) -> Result<RateLimitMode, CoordinatorError> {
        match counted {
            Ok(()) => Ok(RateLimitMode::Counted),
            Err(refused) => {
                options.context.trace("Rate limit: refused by the coordinator");
                Err(self.rate_limited(refused, true))
            }
        }
    }

    /// The error of a request that was refused. Counts it.
    #[cold]
    pub(super) fn rate_limited(&self, refused: RateLimited, by_coordinator: bool) -> CoordinatorError {
        let refusals = match refused.kind.is_write() {
            false => &self.counters.limited_reads,
            true => &self.counters.limited_writes,
        };
        count(&refusals[usize::from(!by_coordinator)]);
        CoordinatorError::RateLimited { refused, by_coordinator }
    }

    /// Counts an error if a replica's rate limit caused it.
    pub(super) fn count_rate_limited(&self, error: &CoordinatorError) {
        if let CoordinatorError::RateLimited { refused, by_coordinator: false } = error {
            self.rate_limited(*refused, false);
        }
    }
}

fn limited_as(mode: RateLimitMode, options: &RequestOptions) -> RequestOptions {
    options.context.trace(match mode {
        RateLimitMode::Enforce { .. } => "Rate limit: the replicas decide",
        _ => "Rate limit: accepted by the coordinator",
    });
    options.limited(mode)
}
