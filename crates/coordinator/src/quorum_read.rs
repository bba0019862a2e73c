//! Reads a page from several replicas: rows from one, digests from as many others as the level
//! needs.
//!
//! If the digests agree, the rows are the result, up to where the first replica stopped. If they
//! differ, the replicas that responded are asked for the data itself. The data is merged, and the
//! page is built from the merged data. Before the client is answered, each replica receives the
//! data that it lacks ([`super::repair`]).
//!
//! A replica that fails is replaced by the next one. If a replica is slow, another one is asked
//! too, after the delay that the table's `speculative_retry` sets.
//!
//! The replicas that read the previous page are asked first, whichever node coordinates. Each may
//! have kept its reader, whether it returned rows, a digest or data. This saves work and changes no
//! result: any other replica returns the same.
//!
//! [`super::quorum_state`] has the decisions, without I/O.

use super::client::Message;
use super::coalescing::{LeaderResult, ReadStart};
use super::error::Attempt;
use super::level::factors;
use super::paging::LastReplicas;
use super::quorum_page::QuorumPage;
use super::quorum_state::{AfterRepair, Next, QuorumState, Sources};
use super::read_trace::{self, ReadKind};
use super::reconcile::{self, Merged};
use super::repair::{OtherSet, Repairs};
use super::replica_failure::ReplicaFailure;
use super::response_tracker::{LevelStatus, ResponseTracker};
use super::{Coordinator, CoordinatorError, RequestOptions, count};
use cluster::metadata::{Metadata, Table};
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::Replicas;
use futures_util::StreamExt;
use futures_util::future::{Either, LocalBoxFuture, select};
use futures_util::stream::FuturesUnordered;
use model::id::HostId;
use replica::{Class, Context, FragmentPage, Page, ReadCommand, ReplicaRequest, ReplicaResponse};
use rt::sync::{Unwanted, oneshot};
use rt::time::Duration;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;

/// What a read does that has followed a leader.
enum Followed {
    /// It has the result of its leader, or its own deadline has passed.
    Ended(Result<QuorumPage, CoordinatorError>),
    /// It reads by itself: the result of its leader cannot be shared.
    ReadsAlone,
    /// It starts again: its leader was cancelled, or had less time.
    StartsAgain,
}

type Asked =
    FuturesUnordered<LocalBoxFuture<'static, (TabletReplica, ReadKind, Result<ReplicaResponse, ReplicaFailure>)>>;

/// A page that is built from the merged data of several replicas.
struct Reconciled {
    page: Box<Page>,
    has_more: bool,
    /// The replicas that contributed to the merged data.
    sources: Sources,
}

/// A page to read of one tablet that has replicas on other nodes.
#[derive(Clone, Copy)]
pub(super) struct TabletRead<'a> {
    pub table: &'a Table,
    pub tablet: u32,
    /// Its ranges are within the tablet.
    pub command: &'a Rc<ReadCommand>,
    /// The replicas that read the previous page.
    pub kept: Option<&'a LastReplicas>,
    pub options: &'a RequestOptions,
}

impl Coordinator {
    /// Reads a page. Concurrent equal reads share their requests ([`super::coalescing`]).
    pub(super) async fn read_quorum(&self, read: TabletRead<'_>) -> Result<QuorumPage, CoordinatorError> {
        let mut has_followed = false;
        // The protection decides on each request.
        while !self.replica.protects_itself() {
            let mut in_flight = match self.coalescing.start(read.command, read.options, has_followed) {
                ReadStart::Sends(Some(in_flight)) => in_flight,
                ReadStart::Sends(None) => break,
                ReadStart::Follows(result) => match self.follow(result, read).await {
                    Followed::Ended(result) => return result,
                    Followed::ReadsAlone => break,
                    Followed::StartsAgain => {
                        has_followed = true;
                        continue;
                    }
                },
            };
            let followers = in_flight.gather_followers().await;
            let result = self.read_from_replicas(read).await;
            let is_last = result.as_ref().is_ok_and(|page| page.is_last(read.command));
            in_flight.share(&result, is_last, followers);
            return result;
        }
        self.read_from_replicas(read).await
    }

    /// Waits for the result of a leader, within the deadline of the follower.
    async fn follow(&self, result: oneshot::Receiver<LeaderResult>, read: TabletRead<'_>) -> Followed {
        let Context { deadline, cancel, .. } = &read.options.context;
        let result = match deadline.limit_unless(cancel, result).await {
            Ok(Ok(LeaderResult::Shared(result))) => result,
            Ok(Ok(LeaderResult::NotShared)) => return Followed::ReadsAlone,
            // The leader was cancelled.
            Ok(Err(_)) => return Followed::StartsAgain,
            Err(Unwanted::Cancelled) => Err(CoordinatorError::Cancelled),
            Err(Unwanted::Late) => {
                let TabletRead { table, tablet, options, .. } = read;
                return match self.plan(&self.metadata(), table, tablet, &[], options) {
                    Ok((mut read, _)) => Followed::Ended(Err(self.timed_out(&mut read))),
                    Err(Attempt::Failed(error)) => Followed::Ended(Err(error)),
                    Err(Attempt::Outdated { .. }) => Followed::StartsAgain,
                };
            }
        };
        match &result {
            Ok(_) => count(&self.counters.coalesced_reads),
            // The leader had less time.
            Err(CoordinatorError::Timeout { .. }) if !deadline.is_past() => return Followed::StartsAgain,
            Err(error) => self.count_error(error),
        }
        Followed::Ended(result)
    }

    /// Reads the page with its own requests to replicas. A read that a replica refuses as outdated
    /// is repeated with newer metadata.
    async fn read_from_replicas(&self, read: TabletRead<'_>) -> Result<QuorumPage, CoordinatorError> {
        let TabletRead { table, options, .. } = read;
        let mut rate_limit = options.context.rate_limit;
        loop {
            // Uses the newest tablet map, not the one of the statement's plan: replicas may have
            // moved.
            let metadata = self.metadata();
            let number = metadata.number;
            let same = |known: &&Rc<Table>| known.tablets.count() == table.tablets.count();
            let table = metadata.table_by_id(table.schema.id).filter(same).map_or(table, |known| known);
            let mut routed = options.routed_by(number);
            // Replicas count the read once.
            routed.context.rate_limit = rate_limit;
            rate_limit = rate_limit.continued();
            let attempt = self.try_read_quorum(&metadata, TabletRead { table, options: &routed, ..read });
            let required = match attempt.await {
                Ok(page) => return Ok(page),
                Err(Attempt::Failed(error)) => return Err(error),
                Err(Attempt::Outdated { required }) => required,
            };
            drop(metadata);
            let newer = self.wait_for_newer(number, required, options, &self.counters.read_timeouts);
            options.context.cancel.unless(newer).await.unwrap_or(Err(CoordinatorError::Cancelled))?;
        }
    }

    async fn try_read_quorum(&self, metadata: &Metadata, wanted: TabletRead<'_>) -> Result<QuorumPage, Attempt> {
        let TabletRead { table, tablet, command, kept, options } = wanted;
        let (before, last) = (table.tablets.first_token(tablet), table.tablets.last_token(tablet));
        let kept = kept.filter(|kept| kept.have_read(before, last)).map_or(&[][..], |kept| &kept.hosts);
        let (mut read, targets) = self.plan(metadata, table, tablet, kept, options)?;
        read_trace::asked(&targets, kept, options);
        let by = |replicas: Sources| {
            let hosts = replicas.iter().map(|replica| replica.host).collect();
            Some(LastReplicas { before, last, hosts })
        };
        let limit = options.context.deadline;
        let sources = if options.context.class == Class::Maintenance {
            // A maintenance read (resync) must make all replicas equal, purgeable tombstones
            // included. Digests do not cover these, so the data itself is compared.
            targets.iter().copied().collect()
        } else {
            let asked = self.ask_for_page(table, command, &targets, &mut read, options);
            match limit.limit_unless(&options.context.cancel, asked).await {
                Ok(true) => {}
                Ok(false) => return Err(self.too_few(&mut read)),
                Err(Unwanted::Cancelled) => return Err(CoordinatorError::Cancelled.into()),
                Err(Unwanted::Late) => return Err(self.timed_out(&mut read).into()),
            }
            if let Some((page, answered)) = read.agreed(&reconcile::order_of(&table.schema, command.slice.reversed)) {
                read_trace::agreed(&answered, options);
                return Ok(QuorumPage { page, has_more: false, by: by(answered) });
            }
            count(&self.counters.digest_mismatches);
            options.context.trace("Digest mismatch: reconciling the replicas' data");
            read.disagreed()
        };
        let other = OtherSet::of(metadata, &read.nodes, table, tablet, options);
        // Boxed, because it is rare: it must not enlarge the future of other reads.
        let reconciled = Box::pin(self.reconcile(table, command, sources, other, &mut read, options));
        // Repairs that were sent are completed also if the client has disconnected.
        match limit.limit_unless(&options.context.cancel, reconciled).await {
            Ok(Ok(Reconciled { page, has_more, sources })) => {
                read_trace::merged(&sources, options);
                Ok(QuorumPage { page, has_more, by: by(sources) })
            }
            Ok(Err(Some(error))) => Err(error.into()),
            Ok(Err(None)) => Err(self.too_few(&mut read)),
            Err(Unwanted::Cancelled) => Err(CoordinatorError::Cancelled.into()),
            Err(Unwanted::Late) => Err(self.timed_out(&mut read).into()),
        }
    }

    /// Plans a read: its state, and the replicas to ask first. These are as many as the level
    /// needs, the nearest first. Replicas in `kept`, which may have kept a reader, precede others.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::Unavailable`] if too few replicas are up.
    fn plan(
        &self,
        metadata: &Metadata,
        table: &Table,
        tablet: u32,
        kept: &[HostId],
        options: &RequestOptions,
    ) -> Result<(QuorumState, SmallVec<[TabletReplica; 4]>), Attempt> {
        let nodes = self.nodes_by(metadata);
        let own;
        let replicas = match table.tablets.read_set(tablet) {
            [] => {
                own = [self.node_local_replica(table, options.consistency)?];
                &own[..]
            }
            replicas => replicas,
        };
        let ordered = staying_first(replicas, table.tablets.other_read_set(tablet));
        let replicas = ordered.as_deref().unwrap_or(replicas);
        let copies: SmallVec<[_; 4]> = replicas.iter().map(|replica| nodes.candidate(*replica, false)).collect();
        let factors = factors(metadata, &nodes, &table.schema.keyspace, &copies);
        let consistency = options.consistency;
        let tracker = ResponseTracker::new(consistency, nodes.own_datacenter(), &factors, &copies);
        if let Err(few) = tracker.check_alive(&copies) {
            count(&self.counters.unavailable);
            let (required, alive) = (few.required, few.alive);
            return Err(CoordinatorError::Unavailable { consistency, required, alive }.into());
        }
        let (mut targets, mut spare) = (SmallVec::new(), VecDeque::new());
        let mut planned = tracker.clone();
        for replica in nodes.by_proximity(replicas, &self.client.latencies.borrow(), kept, rt::time::coarse_now()) {
            let datacenter = nodes.datacenter(replica.host);
            if planned.needs(datacenter) {
                planned.answered(datacenter);
                targets.push(replica);
            } else if planned.counts(datacenter) {
                spare.push_back(replica);
            }
        }
        debug_assert_eq!(planned.status(), LevelStatus::Reached, "the answers of all targets suffice for the level");
        let alive = copies.iter().filter(|copy| copy.alive && tracker.counts(copy.datacenter)).count() as u32;
        Ok((QuorumState::new(nodes, tracker, consistency, spare, alive), targets))
    }

    fn too_few(&self, read: &mut QuorumState) -> Attempt {
        if read.failures.outdated && !read.failures.is_rate_limited() {
            return Attempt::Outdated { required: read.tracker.required() };
        }
        let error = read.error(false);
        self.count_error(&error);
        error.into()
    }

    fn count_error(&self, error: &CoordinatorError) {
        match error {
            CoordinatorError::Timeout { .. } => count(&self.counters.read_timeouts),
            CoordinatorError::Unavailable { .. } => count(&self.counters.unavailable),
            _ => {}
        }
    }

    fn timed_out(&self, read: &mut QuorumState) -> CoordinatorError {
        count(&self.counters.read_timeouts);
        read.error(true)
    }

    /// Asks for rows and digests until the level is reached. False: the level cannot be reached.
    async fn ask_for_page(
        &self,
        table: &Table,
        command: &Rc<ReadCommand>,
        targets: &[TabletReplica],
        read: &mut QuorumState,
        options: &RequestOptions,
    ) -> bool {
        let message_of = |kind: ReadKind| match kind {
            ReadKind::Rows if targets.len() == 1 => Rc::new(Message::new(ReplicaRequest::Read(command.clone()))),
            ReadKind::Rows => Rc::new(Message::new(ReplicaRequest::ReadAndDigest(command.clone()))),
            _ => Rc::new(Message::new(ReplicaRequest::Digest(command.clone()))),
        };
        let rows = message_of(ReadKind::Rows);
        let mut digest_of = None;
        let mut asked: Asked = FuturesUnordered::new();
        let mut ask = |asked: &Asked, read: &mut QuorumState, replica: TabletReplica, kind: ReadKind| {
            read.asked(replica, kind);
            let digest = || message_of(ReadKind::Digest);
            let message = if kind == ReadKind::Rows { &rows } else { digest_of.get_or_insert_with(digest) };
            asked.push(self.ask(replica, kind, message, options));
        };
        // The replica has counted the read. A message has the mode of its first request.
        let ask_again = |asked: &Asked, read: &mut QuorumState, replica: TabletReplica, kind: ReadKind| {
            read.asked(replica, kind);
            asked.push(self.ask(replica, kind, &message_of(kind), &options.continued()));
        };
        let began = rt::time::now();
        for (at, replica) in targets.iter().enumerate() {
            ask(&asked, read, *replica, if at == 0 { ReadKind::Rows } else { ReadKind::Digest });
        }
        let mut retry_delay = self.read_times.retry_delay(table).filter(|_| read.has_spare());
        let mut retry_timer = pin!(sleep(retry_delay));
        loop {
            let next = match retry_delay {
                None => Some(asked.next().await),
                Some(_) => match select(asked.next(), retry_timer.as_mut()).await {
                    Either::Left((next, _)) => Some(next),
                    Either::Right(_) => None,
                },
            };
            let Some(next) = next else {
                let is_always = retry_delay.take().is_some_and(|delay| delay.is_zero());
                if !is_always && self.client.is_overloaded() {
                    // The responses wait for this shard. More requests would only delay them.
                    count(&self.counters.speculation_skipped);
                    read_trace::not_asked_speculatively(options);
                } else if let Some((replica, kind)) = read.next_speculative() {
                    count(&self.counters.speculative_reads);
                    read_trace::asked_speculatively(kind, replica, options);
                    ask(&asked, read, replica, kind);
                }
                continue;
            };
            let Some((replica, kind, answer)) = next else { return false };
            if let Err(failure) = &answer {
                read_trace::failed(replica, failure, options);
            }
            match read.add(replica, kind, answer) {
                Next::Wait => {}
                Next::Ask(replica, kind) => {
                    read_trace::asked_instead(kind, replica, options);
                    ask(&asked, read, replica, kind);
                }
                Next::AskAgain(replica, kind) => {
                    read_trace::asked_again(kind, replica, options);
                    ask_again(&asked, read, replica, kind);
                }
                Next::Enough => {
                    self.read_times.record(table, began);
                    read.return_unanswered();
                    return true;
                }
                Next::Unreachable => return false,
            }
        }
    }

    /// Sends a request to one replica.
    fn ask(
        &self,
        replica: TabletReplica,
        kind: ReadKind,
        message: &Rc<Message>,
        options: &RequestOptions,
    ) -> LocalBoxFuture<'static, (TabletReplica, ReadKind, Result<ReplicaResponse, ReplicaFailure>)> {
        let (client, message, context) = (self.client.clone(), message.clone(), options.context.clone());
        Box::pin(async move { (replica, kind, client.send(replica, &message, &context).await) })
    }

    /// Merges the data of these replicas, repairs them, and builds the page. No response of theirs
    /// counts towards the level before. `Err(None)`: too few replicas responded.
    async fn reconcile(
        &self,
        table: &Table,
        command: &ReadCommand,
        mut replicas: Sources,
        other: Option<OtherSet>,
        read: &mut QuorumState,
        options: &RequestOptions,
    ) -> Result<Reconciled, Option<CoordinatorError>> {
        let (merged, sources) = loop {
            let (mut merged, sources) = self.merged(table, command, &replicas, read, options).await?;
            let repairs = Repairs::new(&sources, std::mem::take(&mut merged.repairs), other.as_ref());
            // A replica that lacks something counts again once it has the repair.
            read.withdraw(&repairs.lacking);
            let (nodes, tracker, has_spare) = (read.nodes.clone(), read.tracker.clone(), read.has_spare());
            let repaired = self.repair(repairs, &sources, &nodes, tracker, has_spare, options).await;
            match read.repaired(&sources, repaired) {
                AfterRepair::Enough => break (merged, sources),
                AfterRepair::Merge(others) => replicas = others,
                AfterRepair::Unreachable => return Err(None),
            }
        };
        let page = reconcile::page_of(&table.schema, command, &merged);
        let required = read.tracker.required();
        let (page, has_more) = page.map_err(|error| CoordinatorError::of(error, options.consistency, required))?;
        Ok(Reconciled { page: Box::new(page), has_more, sources })
    }

    /// Asks these replicas for their data and merges it. Returns the replicas that responded; a
    /// replica that fails is replaced by a spare one. No response of theirs counts before.
    async fn merged(
        &self,
        table: &Table,
        command: &ReadCommand,
        replicas: &[TabletReplica],
        read: &mut QuorumState,
        options: &RequestOptions,
    ) -> Result<(Merged, Sources), Option<CoordinatorError>> {
        let message = Rc::new(Message::new(ReplicaRequest::ReadFragments(Rc::new(data_command(command)))));
        let mut asked: Asked = FuturesUnordered::new();
        replicas.iter().for_each(|replica| asked.push(self.ask(*replica, ReadKind::Fragments, &message, options)));
        let mut parts: Vec<FragmentPage> = Vec::new();
        let mut sources = Sources::new();
        while let Some((replica, _, answer)) = asked.next().await {
            match answer {
                Ok(ReplicaResponse::Fragments(part)) => {
                    debug_assert!(!sources.contains(&replica), "the data of each replica is merged once");
                    read.counts(replica);
                    parts.push(*part);
                    sources.push(replica);
                }
                Ok(_) => read.fail(replica, ReplicaFailure::unexpected_answer("a read")),
                Err(failure) => {
                    read_trace::failed(replica, &failure, options);
                    read.fail(replica, failure);
                    if let Some(replica) = read.next_spare() {
                        read_trace::asked_instead(ReadKind::Fragments, replica, options);
                        asked.push(self.ask(replica, ReadKind::Fragments, &message, options));
                    }
                }
            }
        }
        if read.tracker.status() != LevelStatus::Reached {
            return Err(None);
        }
        // Half of what a log takes: a mutation also has a head, and a frame.
        let most = self.replica.longest_mutation() / 2;
        Ok((reconcile::merge(&table.schema, command.slice.reversed, command.now, most, parts), sources))
    }
}

/// The order in which to ask equally near replicas while a tablet moves: replicas that remain in
/// the other read set come first. None: the tablet does not move.
fn staying_first(read: &[TabletReplica], other: Option<Replicas>) -> Option<Replicas> {
    let other = other?;
    let (stay, go): (Replicas, Replicas) = read.iter().copied().partition(|copy| other.contains(copy));
    Some(stay.into_iter().chain(go).collect())
}

/// The command that reads the data behind a page: without limits that would leave holes, and always
/// paged.
fn data_command(command: &ReadCommand) -> ReadCommand {
    let mut whole = command.clone();
    whole.limits.per_partition = u64::MAX;
    whole.limits.paged = true;
    whole.limits.bytes = whole.limits.bytes.min(MAX_DATA_BYTES);
    if whole.output.distinct || !whole.output.reductions.is_empty() {
        let (columns, static_only) = (whole.output.columns.clone(), whole.output.static_only_rows);
        whole.output = Rc::new(replica::Output::new(columns, static_only, false));
    }
    whole
}

/// The most result bytes of a replica's part for reconciliation, even if the read has no such
/// limit.
const MAX_DATA_BYTES: u64 = 1 << 20;

/// Sleeps for `time`; without a time it never ends and starts no timer.
async fn sleep(time: Option<Duration>) {
    match time {
        Some(time) => rt::time::sleep(time).await,
        None => std::future::pending().await,
    }
}
