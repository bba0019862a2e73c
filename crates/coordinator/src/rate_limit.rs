//! Decides how a request is counted against the rate limits of its tables.
//!
//! This shard counts each partition of a request. It decides alone if it owns the partition, or if
//! an owner has told it lately what comes to the other coordinators ([`super::arrival_reports`]): a
//! refused request reaches no replica. Otherwise every replica decides, all of them with the same
//! random number. Limits of bytes are always decided by owners. A request is counted once: parts
//! that the coordinator reads by itself, repetitions with newer metadata, repairs and hints are
//! exempt. The bytes of such parts are charged all the same.

use super::read::{PageRequest, Partitions, Query};
use super::resume::Start;
use super::{Coordinator, CoordinatorError, RequestOptions, WriteKind, count};
use cluster::metadata::{Metadata, Table};
use cluster::tablets::TabletReplica;
use model::token::Token;
use replica::rate_limit::{Admission, only_token};
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

/// The tokens of the partitions that count for a page. None: the page is not limited.
pub(super) fn tokens_of(query: &Query, page: &PageRequest) -> Option<SmallVec<[Token; 4]>> {
    let keys = match &query.partitions {
        Partitions::Range(range) => return Some(SmallVec::from_slice(&[only_token(range)?])),
        Partitions::Keys(keys) => keys,
    };
    let mut counted = &keys[..];
    if let Some(state) = &page.state {
        // All keys were counted for the first page.
        let start = Start::after(query, state.position.clone(), state.rows_in_last);
        let at = keys.iter().position(|key| *key == start.key)?;
        counted = if start.inside { &keys[at..=at] } else { &[] };
    }
    Some(counted.iter().map(|key| key.token).collect())
}

/// The decisions on the partitions of a request. All partitions are counted, also after a refusal.
struct Decisions {
    draw: u32,
    refused: Option<RateLimited>,
    /// Whether the replicas must decide on one of them.
    deferred: bool,
}

impl Decisions {
    fn new() -> Decisions {
        Decisions { draw: rt::random::u64() as u32, refused: None, deferred: false }
    }
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
        let Some(tokens) = tokens_of(query, page) else { return Ok(None) };
        let mut decisions = Decisions::new();
        for token in tokens {
            self.decide(&mut decisions, &query.table, token, LimitKind::Read, options);
        }
        let first = limited_as(self.mode_of(decisions, options)?, options);
        Ok(Some(Box::new(LimitedPage { first, rest })))
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
        let mut decisions = None;
        for (at, (_, key)) in mutations.iter().enumerate() {
            let table = table_of(at)?;
            if table.schema.rate_limits().limits_writes() {
                let decisions = decisions.get_or_insert_with(Decisions::new);
                self.decide(decisions, table, key.token, LimitKind::Write, options);
            }
        }
        let Some(decisions) = decisions else { return Ok(None) };
        Ok(Some(Box::new(limited_as(self.mode_of(decisions, options)?, options))))
    }

    /// Counts a partition, and decides on it if this shard can.
    fn decide(
        &self,
        decisions: &mut Decisions,
        table: &Table,
        token: Token,
        kind: LimitKind,
        options: &RequestOptions,
    ) {
        let (draw, owns) = (decisions.draw, self.owns(table, token));
        match self.replica.limit(token, &table.schema, kind, draw, &options.context, owns) {
            Ok(Admission::Accepted) => {}
            Ok(Admission::Deferred) => decisions.deferred = true,
            Err(refused) => decisions.refused = decisions.refused.or(Some(refused)),
        }
    }

    /// Whether this shard is a replica of a partition.
    pub(super) fn owns(&self, table: &Table, token: Token) -> bool {
        let own = TabletReplica { host: self.host, shard: rt::shard::this().0 };
        table.tablets.read_set(table.tablets.tablet_of(token)).contains(&own)
    }

    /// The mode of a request that this shard has counted.
    fn mode_of(&self, decisions: Decisions, options: &RequestOptions) -> Result<RateLimitMode, CoordinatorError> {
        match decisions {
            Decisions { refused: Some(refused), .. } => {
                options.context.trace("Rate limit: refused by the coordinator");
                Err(self.rate_limited(refused, true))
            }
            Decisions { deferred: true, draw, .. } => Ok(RateLimitMode::Deferred { draw }),
            _ => Ok(RateLimitMode::Counted),
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
        RateLimitMode::Deferred { .. } => "Rate limit: the replicas decide",
        _ => "Rate limit: accepted by the coordinator",
    });
    options.limited(mode)
}
