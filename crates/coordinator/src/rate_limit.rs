//! Decides how a request is counted against the rate limits of its tables.
//!
//! This shard counts each partition of a request. It decides alone if it owns the partition, or if
//! an owner has recently reported the rate at the other coordinators ([`super::arrival_reports`]).
//! Then a refused request reaches no replica. Otherwise every replica decides, all of them with the
//! same random number. Limits of bytes are always decided by owners. A request is counted once:
//! parts that the coordinator reads by itself, repetitions with newer metadata, repairs and hints
//! are exempt. The bytes of such parts are charged all the same.

use super::nodes::Nodes;
use super::page_counting::{Counting, PageCounting};
use super::read::{PageRequest, Query, QueryPartitions};
use super::resume::Start;
use super::write_responses::WriteGroup;
use super::{Coordinator, CoordinatorError, RequestOptions, WriteKind, count};
use cluster::metadata::{Metadata, Table};
use cluster::tablets::TabletReplica;
use model::range::PartitionRange;
use model::token::Token;
use replica::rate_limit::{Admission, only_token};
use replica::{Class, Context, LimitKind, Mutations, RateLimitMode, RateLimited, Trace};
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

    /// The same options for work that repeats or continues a request.
    pub(super) fn continued(&self) -> RequestOptions {
        self.limited(self.context.rate_limit.continued())
    }

    /// Whether the request can be limited, and nothing has decided yet.
    pub(super) fn is_undecided(&self) -> bool {
        self.context.class == Class::User && self.context.rate_limit == RateLimitMode::Off
    }
}

/// The tokens of the partitions that are counted before a page is read. None: the page is not
/// limited. A page after the first one also counts each further partition when it reaches that
/// partition ([`Coordinator::limit_reached`]).
pub(super) fn tokens_of(query: &Query, page: &PageRequest) -> Option<SmallVec<[Token; 4]>> {
    let is_part = page.counting != Counting::Page;
    let keys = match &query.partitions {
        QueryPartitions::Range(range) => {
            let token = only_token(range)?;
            return Some(if is_part { SmallVec::new() } else { SmallVec::from_slice(&[token]) });
        }
        QueryPartitions::Keys(keys) => keys,
    };
    let counted = match &page.state {
        _ if matches!(page.counting, Counting::PartOfFirst { .. } | Counting::Accepted) => &[],
        None if is_part => &[],
        None => &keys[..],
        Some(state) => {
            let start = Start::after(query, state.position.clone(), state.rows_in_last);
            let at = keys.iter().position(|key| *key == start.key)?;
            let rest = &keys[at + usize::from(!start.inside)..];
            let was_counted = is_part && start.inside;
            if was_counted { &[] } else { &rest[..rest.len().min(1)] }
        }
    };
    Some(counted.iter().map(|key| key.token).collect())
}

/// The decisions on the partitions of a request. All partitions are counted, even after a refusal.
struct Decisions<'a> {
    draw: u32,
    trace: Option<&'a Trace>,
    refused: Option<RateLimited>,
    /// Whether the replicas must decide on one of them.
    deferred: bool,
}

impl<'a> Decisions<'a> {
    fn new(trace: Option<&'a Trace>) -> Decisions<'a> {
        Decisions { draw: rt::random::u64() as u32, trace, refused: None, deferred: false }
    }
}

impl Coordinator {
    /// Counts partitions of a table with limits as soon as they are known, and decides: a refusal
    /// is cheap, because nothing else of the request is made. The mode must be set in the context
    /// of the request.
    ///
    /// # Errors
    ///
    /// The refusal of one of the partitions.
    #[inline]
    pub fn limit_early(
        &self,
        table: &Table,
        tokens: impl Iterator<Item = Token>,
        kind: LimitKind,
        trace: Option<&Trace>,
    ) -> Result<RateLimitMode, RateLimited> {
        let mut decisions = Decisions::new(trace);
        tokens.for_each(|token| self.decide(&mut decisions, table, token, kind));
        self.mode_of(decisions)
    }

    /// Counts the partitions of a page of a table with a limit of reads, and decides, unless that
    /// was done early. Returns the options of its targets. None: those of the request.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::RateLimited`]
    #[cold]
    pub(super) fn limit_read(
        &self,
        query: &Query,
        page: &PageRequest,
        options: &RequestOptions,
    ) -> Result<Option<Box<RequestOptions>>, CoordinatorError> {
        let tokens = tokens_of(query, page).filter(|tokens| !tokens.is_empty() && options.is_undecided());
        let Some(tokens) = tokens else { return Ok(None) };
        let mode =
            self.limit_early(&query.table, tokens.into_iter(), LimitKind::Read, options.context.trace.as_deref());
        Ok(Some(Box::new(options.limited(mode.map_err(by_coordinator)?))))
    }

    /// How the targets of a page are counted. `place`: that of the first one.
    #[inline]
    pub(super) fn counting_of<'a>(
        &self,
        query: &Query,
        page: &PageRequest,
        place: usize,
        options: &'a RequestOptions,
    ) -> PageCounting<'a> {
        let limits = query.table.schema.rate_limits();
        let (asked, counts_reached) = match page.counting {
            Counting::Page => (0, page.state.is_some()),
            Counting::PartOfFirst { asked } => (asked, false),
            // It resumes in a target that an earlier part has counted, or at the next one.
            Counting::PartOfLater => {
                let resumes = tokens_of(query, page).is_some_and(|tokens| tokens.is_empty());
                (if resumes { place.saturating_add(1) } else { 0 }, true)
            }
            Counting::Accepted => (usize::MAX, false),
        };
        let counts_reached = counts_reached && limits.limits_reads() && place != usize::MAX;
        PageCounting::new(options, asked, limits.read_kib.is_some(), counts_reached)
    }

    /// Counts a further partition that a page after the first one reaches, and decides. The options
    /// are for its read.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::RateLimited`]
    #[cold]
    pub(super) fn limit_reached(
        &self,
        query: &Query,
        partition: &PartitionRange,
        options: &RequestOptions,
    ) -> Result<RequestOptions, CoordinatorError> {
        let (token, trace) = (only_token(partition).into_iter(), options.context.trace.as_deref());
        let mode = self.limit_early(&query.table, token, LimitKind::Read, trace).map_err(by_coordinator)?;
        Ok(options.limited(mode))
    }

    /// The options of a write of tables of which some have a limit of writes. None: the write is
    /// not limited, or was decided.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::RateLimited`]
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
                let decisions = decisions.get_or_insert_with(|| Decisions::new(options.context.trace.as_deref()));
                self.decide(decisions, table, key.token, LimitKind::Write);
            }
        }
        let Some(decisions) = decisions else { return Ok(None) };
        Ok(Some(Box::new(options.limited(self.mode_of(decisions).map_err(by_coordinator)?))))
    }

    /// Decides on those groups of a write of which no replica is up to decide: they are kept as
    /// hints alone.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::RateLimited`]
    pub(super) fn limit_hinted(
        &self,
        groups: &[WriteGroup],
        nodes: &Nodes,
        draw: u32,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        let is_hinted = |group: &&WriteGroup| !group.replicas.iter().any(|replica| nodes.is_alive(replica.host));
        for group in groups.iter().filter(is_hinted) {
            let limited = self.replica.limit_hinted(&group.mutations, draw, &options.context);
            limited.map_err(|refused| self.rate_limited(refused, true))?;
        }
        Ok(())
    }

    /// Counts a partition, and decides on it if this shard can.
    fn decide(&self, decisions: &mut Decisions<'_>, table: &Table, token: Token, kind: LimitKind) {
        let owns = self.owns(table, token);
        match self.replica.limit(token, &table.schema, kind, decisions.draw, owns, decisions.trace) {
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
    fn mode_of(&self, decisions: Decisions<'_>) -> Result<RateLimitMode, RateLimited> {
        let (result, what) = match decisions {
            Decisions { refused: Some(refused), .. } => {
                self.count_refusal(refused.kind, true);
                (Err(refused), "Rate limit: refused by the coordinator")
            }
            Decisions { deferred: true, draw, .. } => {
                (Ok(RateLimitMode::Deferred { draw }), "Rate limit: the replicas decide")
            }
            _ => (Ok(RateLimitMode::Counted), "Rate limit: accepted by the coordinator"),
        };
        if let Some(trace) = decisions.trace {
            trace.event(what);
        }
        result
    }

    fn count_refusal(&self, kind: LimitKind, by_coordinator: bool) {
        let refusals = match kind.is_write() {
            false => &self.counters.limited_reads,
            true => &self.counters.limited_writes,
        };
        count(&refusals[usize::from(!by_coordinator)]);
    }

    /// The error of a request that was refused. Counts it.
    #[cold]
    pub(super) fn rate_limited(&self, refused: RateLimited, by_coordinator: bool) -> CoordinatorError {
        self.count_refusal(refused.kind, by_coordinator);
        CoordinatorError::RateLimited { refused, by_coordinator }
    }

    /// Counts an error if a replica's rate limit caused it.
    pub(super) fn count_rate_limited(&self, error: &CoordinatorError) {
        if let CoordinatorError::RateLimited { refused, by_coordinator: false } = error {
            self.count_refusal(refused.kind, false);
        }
    }
}

fn by_coordinator(refused: RateLimited) -> CoordinatorError {
    CoordinatorError::RateLimited { refused, by_coordinator: true }
}
