//! Reading from several replicas: the rows from one, digests of them from as many others as the level asks for.
//!
//! Where the digests agree the rows are the answer, up to where the first of the replicas stopped. Where they do not, those who answered are
//! asked for the data itself; it is merged, each gets what it lacks before the answer goes out ([`super::repair`]), and the page is made of
//! the merged data.
//! A replica that fails is replaced by the next one. One that is slow gets company: another replica is asked as well, as the table's
//! `speculative_retry` says.
//! Those that read the page before are asked first, whoever coordinates: each of them, whether it gave rows, a digest or data, may have kept
//! its reader. That is all that it is about: any other replica gives the same answer.

use super::client::Message;
use super::error::Attempt;
use super::level::factors;
use super::miss::Miss;
use super::paging::LastReplicas;
use super::quorum::{Next, QuorumRead, Sources, otherwise};
use super::reconcile::{self, Merged};
use super::repair::{OtherSet, Repairs};
use super::steps::{self, Part};
use super::tally::{Standing, Tally};
use super::{Coordinator, CoordinatorError, RequestOptions, count};
use cluster::metadata::{Metadata, Table};
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::Replicas;
use futures_util::StreamExt;
use futures_util::future::{Either, LocalBoxFuture, select};
use futures_util::stream::FuturesUnordered;
use model::id::HostId;
use replica::{Answer, Class, FragmentPage, Page, ReadCommand, Request};
use rt::sync::Unwanted;
use rt::time::Duration;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;

/// A page that replicas agreed upon.
pub(super) struct Gathered {
    pub page: Box<Page>,
    /// No limit was reached, and yet there is more behind its end: it has to be asked for.
    pub goes_on: bool,
    /// Who agreed; none where there is one replica only.
    pub by: Option<LastReplicas>,
}

type Asked = FuturesUnordered<LocalBoxFuture<'static, (TabletReplica, Part, Result<Answer, Miss>)>>;

/// A page that was made of the data of several replicas.
struct Reconciled {
    page: Box<Page>,
    goes_on: bool,
    /// Those whose data it has.
    sources: Sources,
}

impl Coordinator {
    /// Reads a page of one tablet of which other nodes have copies. The command's ranges are within the tablet.
    pub(super) async fn gather(
        &self,
        table: &Table,
        tablet: u32,
        command: &Rc<ReadCommand>,
        kept: Option<&LastReplicas>,
        options: &RequestOptions,
    ) -> Result<Gathered, CoordinatorError> {
        loop {
            // The newest map, whatever the statement was planned by: copies may have moved since.
            let metadata = self.metadata();
            let number = metadata.number;
            let same = |known: &&Rc<Table>| known.tablets.count() == table.tablets.count();
            let table = metadata.table_by_id(table.schema.id).filter(same).map_or(table, |known| known);
            let routed = options.routed_by(number);
            match self.gather_by(&metadata, table, tablet, command, kept, &routed).await {
                Ok(gathered) => return Ok(gathered),
                Err(Attempt::Failed(error)) => return Err(error),
                Err(Attempt::Outdated) => {}
            }
            drop(metadata);
            self.newer_than(number, options).await?;
        }
    }

    async fn gather_by(
        &self,
        metadata: &Metadata,
        table: &Table,
        tablet: u32,
        command: &Rc<ReadCommand>,
        kept: Option<&LastReplicas>,
        options: &RequestOptions,
    ) -> Result<Gathered, Attempt> {
        let (before, last) = (table.tablets.first_token(tablet), table.tablets.last_token(tablet));
        let kept = kept.filter(|kept| kept.have_read(before, last)).map_or(&[][..], |kept| &kept.hosts);
        let (mut read, targets) = self.plan(metadata, table, tablet, kept, options)?;
        steps::asked(&targets, kept, options);
        let by = |replicas: Sources| {
            let hosts = replicas.iter().map(|replica| replica.host).collect();
            Some(LastReplicas { before, last, hosts })
        };
        let limit = options.context.deadline;
        let sources = if options.context.class == Class::Maintenance {
            // What is to be the same on all replicas afterwards is more than digests cover: tombstones as well.
            targets.iter().copied().collect()
        } else {
            let asked = self.ask_for_page(table, command, &targets, &mut read, options);
            match limit.limit_unless(&options.context.cancel, asked).await {
                Ok(true) => {}
                Ok(false) => return Err(self.too_few(&mut read)),
                Err(Unwanted::Cancelled) => return Err(CoordinatorError::Cancelled.into()),
                Err(Unwanted::Late) => return Err(self.late(&mut read).into()),
            }
            if let Some((page, answered)) = read.agreed(&reconcile::order_of(&table.schema, command.slice.reversed)) {
                steps::agreed(&answered, options);
                return Ok(Gathered { page, goes_on: false, by: by(answered) });
            }
            count(&self.counters.digest_mismatches);
            options.context.trace("Digest mismatch: reconciling the replicas' data");
            read.disagreed()
        };
        let other = OtherSet::of(metadata, &read.nodes, table, tablet, options);
        // Boxed, for it is seldom: what reads have with them is small.
        let reconciled = Box::pin(self.reconcile(table, command, sources, other, &mut read, options));
        match limit.limit(reconciled).await {
            Ok(Ok(Reconciled { page, goes_on, sources })) => {
                steps::merged(&sources, options);
                Ok(Gathered { page, goes_on, by: by(sources) })
            }
            Ok(Err(Some(error))) => Err(error.into()),
            Ok(Err(None)) => Err(self.too_few(&mut read)),
            Err(_) => Err(self.late(&mut read).into()),
        }
    }

    /// A read of a tablet's replicas, and which of them to ask first: as many as the level asks for, the nearest ones and those that have kept
    /// readers before others.
    fn plan(
        &self,
        metadata: &Metadata,
        table: &Table,
        tablet: u32,
        kept: &[HostId],
        options: &RequestOptions,
    ) -> Result<(QuorumRead, SmallVec<[TabletReplica; 4]>), Attempt> {
        let nodes = self.nodes_by(metadata);
        let own = [TabletReplica { host: self.host, shard: 0 }];
        let replicas = match table.tablets.read_set(tablet) {
            // What each node stores by itself is on shard 0.
            [] => &own,
            replicas => replicas,
        };
        let ordered = staying_first(replicas, table.tablets.other_read_set(tablet));
        let replicas = ordered.as_deref().unwrap_or(replicas);
        let copies: SmallVec<[_; 4]> = replicas.iter().map(|replica| nodes.candidate(*replica, false)).collect();
        let factors = factors(metadata, &nodes, &table.schema.keyspace, replicas);
        let consistency = options.consistency;
        let tally = Tally::new(consistency, nodes.own_datacenter(), &factors, &copies);
        if let Err(few) = tally.check_alive(&copies) {
            count(&self.counters.unavailable);
            let (required, alive) = (few.required, few.alive);
            return Err(CoordinatorError::Unavailable { consistency, required, alive }.into());
        }
        let (mut targets, mut spare) = (SmallVec::new(), VecDeque::new());
        let mut planned = tally.clone();
        for replica in nodes.by_proximity(replicas, &self.client.latencies.borrow(), kept, rt::time::coarse_now()) {
            let datacenter = nodes.datacenter(replica.host);
            if planned.needs(datacenter) {
                planned.answered(datacenter);
                targets.push(replica);
            } else if planned.counts(datacenter) {
                spare.push_back(replica);
            }
        }
        let alive = copies.iter().filter(|copy| copy.alive && tally.counts(copy.datacenter)).count() as u32;
        Ok((QuorumRead::new(nodes, tally, consistency, spare, alive), targets))
    }

    fn too_few(&self, read: &mut QuorumRead) -> Attempt {
        if read.misses.outdated {
            return Attempt::Outdated;
        }
        let error = read.error(false);
        match error {
            CoordinatorError::Timeout { .. } => count(&self.counters.read_timeouts),
            CoordinatorError::Unavailable { .. } => count(&self.counters.unavailable),
            _ => {}
        }
        error.into()
    }

    fn late(&self, read: &mut QuorumRead) -> CoordinatorError {
        count(&self.counters.read_timeouts);
        read.error(true)
    }

    /// Asks for rows and digests until the level is reached. False: it is out of reach.
    async fn ask_for_page(
        &self,
        table: &Table,
        command: &Rc<ReadCommand>,
        targets: &[TabletReplica],
        read: &mut QuorumRead,
        options: &RequestOptions,
    ) -> bool {
        let rows = match targets.len() {
            1 => Rc::new(Message::new(Request::Read(command.clone()))),
            _ => Rc::new(Message::new(Request::ReadAndDigest(command.clone()))),
        };
        let mut digest_of = None;
        let mut asked: Asked = FuturesUnordered::new();
        let mut ask = |asked: &Asked, read: &mut QuorumRead, replica: TabletReplica, part: Part| {
            read.asked(replica, part);
            let digest = || Rc::new(Message::new(Request::Digest(command.clone())));
            let message = if part == Part::Rows { &rows } else { digest_of.get_or_insert_with(digest) };
            asked.push(self.ask(replica, part, message, options));
        };
        let began = rt::time::now();
        for (at, replica) in targets.iter().enumerate() {
            ask(&asked, read, *replica, if at == 0 { Part::Rows } else { Part::Digest });
        }
        let mut patience = self.read_times.patience(table).filter(|_| read.has_spare());
        let mut impatient = pin!(sleep(patience));
        loop {
            let next = match patience {
                None => Some(asked.next().await),
                Some(_) => match select(asked.next(), impatient.as_mut()).await {
                    Either::Left((next, _)) => Some(next),
                    Either::Right(_) => None,
                },
            };
            let Some(next) = next else {
                patience = None;
                if let Some((replica, part)) = read.ask_as_well() {
                    count(&self.counters.speculative_reads);
                    steps::asked_as_well(part, replica, options);
                    ask(&asked, read, replica, part);
                }
                continue;
            };
            let Some((replica, part, answer)) = next else { return false };
            if let Err(miss) = &answer {
                steps::missed(replica, miss, options);
            }
            match read.add(replica, part, answer) {
                Next::Wait => {}
                Next::Ask(replica, part) => {
                    steps::asked_instead(part, replica, options);
                    ask(&asked, read, replica, part);
                }
                Next::Enough => {
                    self.read_times.note(table, began);
                    read.end_asking();
                    return true;
                }
                Next::OutOfReach => return false,
            }
        }
    }

    /// Asks one replica.
    fn ask(
        &self,
        replica: TabletReplica,
        part: Part,
        message: &Rc<Message>,
        options: &RequestOptions,
    ) -> LocalBoxFuture<'static, (TabletReplica, Part, Result<Answer, Miss>)> {
        let (client, message, context) = (self.client.clone(), message.clone(), options.context.clone());
        Box::pin(async move { (replica, part, client.send(replica, &message, &context).await) })
    }

    /// Merges what these replicas have, repairs them, and makes the page. None of them counts before. No error: too little came.
    async fn reconcile(
        &self,
        table: &Table,
        command: &ReadCommand,
        mut replicas: Sources,
        other: Option<OtherSet>,
        read: &mut QuorumRead,
        options: &RequestOptions,
    ) -> Result<Reconciled, Option<CoordinatorError>> {
        let (merged, sources) = loop {
            let (mut merged, sources) = self.merged(table, command, &replicas, read, options).await?;
            let repairs = Repairs::new(&sources, std::mem::take(&mut merged.repairs), other.as_ref());
            // Those that lack something count when they have it.
            read.withdraw(&repairs.lacking);
            let (nodes, tally, has_spare) = (read.nodes.clone(), read.tally.clone(), read.has_spare());
            let repaired = self.repair(repairs, &sources, &nodes, tally, has_spare, options).await;
            read.tally = repaired.tally;
            for (replica, miss) in repaired.misses {
                read.misses.note_unrepaired(replica.host, nodes.address(replica.host), miss);
            }
            match read.tally.standing() {
                Standing::Reached => break (merged, sources),
                Standing::OutOfReach => return Err(None),
                Standing::Open => {}
            }
            // Once more, with others in the place of those that it did not reach.
            let others: Replicas = repaired.missed.iter().map_while(|_| read.next_spare()).collect();
            if others.is_empty() {
                return Err(None);
            }
            replicas = sources.into_iter().filter(|source| !repaired.missed.contains(source)).collect();
            read.withdraw(&replicas);
            replicas.extend(others);
        };
        let page = reconcile::page_of(&table.schema, command, &merged);
        let required = read.tally.required();
        let (page, goes_on) = page.map_err(|error| CoordinatorError::of(error, options.consistency, required))?;
        Ok(Reconciled { page: Box::new(page), goes_on, sources })
    }

    /// What these replicas have, brought together, and who gave it: others, where some of them fail. None of them counts before.
    async fn merged(
        &self,
        table: &Table,
        command: &ReadCommand,
        replicas: &[TabletReplica],
        read: &mut QuorumRead,
        options: &RequestOptions,
    ) -> Result<(Merged, Sources), Option<CoordinatorError>> {
        let message = Rc::new(Message::new(Request::Fragments(Rc::new(data_command(command)))));
        let mut asked: Asked = FuturesUnordered::new();
        replicas.iter().for_each(|replica| asked.push(self.ask(*replica, Part::Data, &message, options)));
        let mut parts: Vec<FragmentPage> = Vec::new();
        let mut sources = Sources::new();
        while let Some((replica, _, answer)) = asked.next().await {
            match answer {
                Ok(Answer::Fragments(part)) => {
                    read.counts(replica);
                    parts.push(*part);
                    sources.push(replica);
                }
                Ok(_) => read.fail(replica, otherwise()),
                Err(miss) => {
                    steps::missed(replica, &miss, options);
                    read.fail(replica, miss);
                    if let Some(replica) = read.next_spare() {
                        steps::asked_instead(Part::Data, replica, options);
                        asked.push(self.ask(replica, Part::Data, &message, options));
                    }
                }
            }
        }
        if read.tally.standing() != Standing::Reached {
            return Err(None);
        }
        Ok((reconcile::merge(&table.schema, command.slice.reversed, command.now, parts), sources))
    }
}

/// The copies of a tablet that are read just now, in the order in which to ask equally near ones: those last that are not in the other set.
fn staying_first(read: &[TabletReplica], other: Option<Replicas>) -> Option<Replicas> {
    let other = other?;
    let (stay, go): (Replicas, Replicas) = read.iter().copied().partition(|copy| other.contains(copy));
    Some(stay.into_iter().chain(go).collect())
}

/// The command for the data behind a page: without limits that would leave holes, and never for everything at once.
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

/// Bytes of result after which a replica's part for reconciliation ends, also where the read itself has no such limit.
const MAX_DATA_BYTES: u64 = 1 << 20;

/// A timer that is never started where nobody waits for it.
async fn sleep(time: Option<Duration>) {
    match time {
        Some(time) => rt::time::sleep(time).await,
        None => std::future::pending().await,
    }
}
