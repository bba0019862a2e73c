//! Reading from several replicas: the rows from one, digests of them from as many others as the level asks for.
//!
//! Where the digests agree the rows are the answer, up to where the first of the replicas stopped. Where they do not, those who answered are
//! asked for the data itself; it is merged, each gets what it lacks before the answer goes out ([`super::repair`]), and the page is made of
//! the merged data.
//! A replica that fails is replaced by the next one. One that is slow gets company: another replica is asked as well, as the table's
//! `speculative_retry` says.
//! Those that read the page before are asked first, whoever coordinates: each of them, whether it gave rows, a digest or data, may have kept
//! its reader. That is all that it is about: any other replica gives the same answer.

use super::error::Attempt;
use super::far::{Message, Miss, MissClass, Unreached};
use super::nodes::Nodes;
use super::paging::LastReplicas;
use super::reconcile::{self, Merged};
use super::repair::OtherSet;
use super::replicate::factors;
use super::steps::{self, Part};
use super::tally::{Standing, Tally};
use super::{Consistency, Coordinator, CoordinatorError, RequestOptions, count};
use crate::metadata::{Metadata, Table};
use crate::tablets::TabletReplica;
use crate::tablets::transition::Replicas;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{Either, LocalBoxFuture, select};
use futures_util::stream::FuturesUnordered;
use replica::wire::{Answer, Request};
use replica::{Class, Digest, FragmentPage, Page, ReadCommand, ReplicaError};
use rt::time::Duration;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;

/// A page that replicas agreed upon.
pub(super) struct Gathered {
    pub page: Page,
    /// No limit was reached, and yet there is more behind its end: it has to be asked for.
    pub goes_on: bool,
    /// Who agreed.
    pub by: LastReplicas,
}

type Asked = FuturesUnordered<LocalBoxFuture<'static, (TabletReplica, Part, Result<Answer, Miss>)>>;

/// A read on its way.
pub(super) struct Gathering {
    pub nodes: Rc<Nodes>,
    pub tally: Tally,
    consistency: Consistency,
    /// Replicas that may be asked if others fail.
    pub spare: VecDeque<TabletReplica>,
    rows: Option<(TabletReplica, Page, Option<Digest>)>,
    digests: SmallVec<[(TabletReplica, Page, Digest); 2]>,
    /// Replicas that answered that they failed.
    failed: Vec<(Option<IpAddr>, String)>,
    /// Replicas that count and were alive when the read began.
    alive: u32,
    /// How many of these turned out to be unreachable: they did not get the request.
    not_sent: u32,
    /// A replica got the request, or may have, and did not answer.
    unanswered: bool,
    invalid: Option<CoordinatorError>,
    /// A replica refused it as routed by outdated metadata.
    outdated: bool,
}

impl Gathering {
    /// The next spare replica whose answer would count.
    fn next_spare(&mut self) -> Option<TabletReplica> {
        let counts = |replica: &TabletReplica| self.tally.needs(self.nodes.datacenter(replica.host));
        let at = self.spare.iter().position(counts)?;
        self.spare.remove(at)
    }

    fn fail(&mut self, replica: TabletReplica, miss: Miss) {
        self.tally.failed(self.nodes.datacenter(replica.host));
        self.note(replica, miss);
    }

    /// Answers that do not count any more.
    fn withdraw(&mut self, replicas: &[TabletReplica]) {
        replicas.iter().for_each(|replica| self.tally.withdrawn(self.nodes.datacenter(replica.host)));
    }

    /// Remembers why a replica did not do what it was asked.
    pub fn note(&mut self, replica: TabletReplica, miss: Miss) {
        match miss {
            Miss::Refused(ReplicaError::NoSuchTable) => self.invalid = Some(CoordinatorError::NoSuchTable),
            Miss::Refused(ReplicaError::Rejected(why)) => self.invalid = Some(CoordinatorError::Invalid(why)),
            Miss::Refused(ReplicaError::Overloaded(why)) => self.invalid = Some(CoordinatorError::Overloaded(why)),
            Miss::Refused(ReplicaError::Cancelled) => self.invalid = Some(CoordinatorError::Cancelled),
            other if other.is_stale() => self.outdated = true,
            other => match other.class() {
                MissClass::NotSent => self.not_sent += 1,
                MissClass::Unanswered => self.unanswered = true,
                MissClass::Failed => self.failed.push((self.nodes.address(replica.host), other.why())),
            },
        }
    }

    /// Remembers why a replica did not take what it lacks. What it refuses is no fault of the read.
    pub fn note_unrepaired(&mut self, replica: TabletReplica, miss: Miss) {
        match miss {
            Miss::Refused(ReplicaError::Rejected(why)) | Miss::Unreached(Unreached::Refused(why)) => {
                let address = self.nodes.address(replica.host);
                let node = address.map_or_else(|| replica.host.to_string(), |address| address.to_string());
                self.failed.push((address, format!("node {node} refuses rows that it lacks: {why}")));
            }
            other => self.note(replica, other),
        }
    }

    /// Why there is no answer: too little came. `late`: the time ran out.
    fn error(&mut self, late: bool) -> CoordinatorError {
        if let Some(error) = self.invalid.take() {
            return error;
        }
        let (consistency, required, received) = (self.consistency, self.tally.required(), self.tally.received());
        let data_present = self.rows.is_some();
        if !late && self.failed.is_empty() && !self.unanswered && self.not_sent > 0 {
            // Every replica that is missing is unreachable, as if it had been known to be down at
            // the beginning.
            let alive = self.alive.saturating_sub(self.not_sent).min(required.saturating_sub(1));
            return CoordinatorError::Unavailable { consistency, required, alive };
        }
        if late || self.failed.is_empty() {
            return CoordinatorError::Timeout { consistency, required, received, data_present };
        }
        let why = self.failed[0].1.clone();
        let nodes = self.failed.iter().filter_map(|(node, _)| *node).collect();
        let failures = self.failed.len() as u32;
        CoordinatorError::Failed { consistency, required, received, failures, nodes, data_present, why }
    }

    fn answered(&self) -> SmallVec<[TabletReplica; 3]> {
        let rows = self.rows.iter().map(|(replica, ..)| *replica);
        rows.chain(self.digests.iter().map(|(replica, ..)| *replica)).collect()
    }
}

impl Coordinator {
    /// Reads a page of one tablet of which other nodes have copies. The command's ranges are within the tablet.
    pub(super) async fn gather(
        &self,
        table: &Table,
        tablet: u32,
        command: ReadCommand,
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
            match self.gather_by(&metadata, table, tablet, &command, kept, &routed).await {
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
        command: &ReadCommand,
        kept: Option<&LastReplicas>,
        options: &RequestOptions,
    ) -> Result<Gathered, Attempt> {
        let nodes = self.nodes_by(metadata);
        let replicas = table.tablets.read_set(tablet);
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
        let mut targets: SmallVec<[TabletReplica; 4]> = SmallVec::new();
        let mut spare = VecDeque::new();
        let mut planned = tally.clone();
        let (before, last) = (table.tablets.first_token(tablet), table.tablets.last_token(tablet));
        let kept = kept.filter(|kept| kept.have_read(before, last)).map_or(&[][..], |kept| &kept.hosts);
        for replica in nodes.by_proximity(replicas, &self.far.latencies.borrow(), kept, rt::time::coarse_now()) {
            let datacenter = nodes.datacenter(replica.host);
            if planned.needs(datacenter) {
                planned.answered(datacenter);
                targets.push(replica);
            } else if planned.counts(datacenter) {
                spare.push_back(replica);
            }
        }
        let alive = copies.iter().filter(|copy| copy.alive && tally.counts(copy.datacenter)).count() as u32;
        let mut gathering = Gathering {
            alive,
            not_sent: 0,
            unanswered: false,
            nodes,
            tally,
            consistency,
            spare,
            rows: None,
            digests: SmallVec::new(),
            failed: Vec::new(),
            invalid: None,
            outdated: false,
        };
        steps::asked(&targets, kept, options);
        let by = |replicas: SmallVec<[TabletReplica; 3]>| {
            let hosts = replicas.iter().map(|replica| replica.host).collect();
            LastReplicas { before, last, hosts }
        };
        let limit = options.context.deadline;
        let answered = if options.context.class == Class::Maintenance {
            // What is to be the same on all replicas afterwards is more than digests cover: tombstones as well.
            targets.iter().copied().collect()
        } else {
            let first = limit.limit(self.ask_for_page(table, command, &targets, &mut gathering, options)).await;
            match first {
                Ok(Ok(())) => {}
                Ok(Err(())) => return Err(self.too_few(&mut gathering)),
                Err(_) => return Err(self.late(&mut gathering).into()),
            }
            let order = reconcile::order_of(&table.schema, command.slice.reversed);
            let Some((_, page, digest)) = &gathering.rows else { return Err(gathering.error(false).into()) };
            if gathering.digests.iter().all(|(_, _, other)| Some(*other) == *digest) {
                let answered = gathering.answered();
                let others = gathering.digests.iter().map(|(_, page, _)| page);
                let first = reconcile::first_end(&order, std::iter::once(page).chain(others));
                let first = first.map(|page| (page.end, page.last.clone(), page.rows_in_last));
                steps::agreed(&answered, options);
                let Some((_, mut page, _)) = gathering.rows.take() else { return Err(gathering.error(false).into()) };
                if let Some(first) = first {
                    (page.end, page.last, page.rows_in_last) = first;
                }
                return Ok(Gathered { page, goes_on: false, by: by(answered) });
            }
            count(&self.counters.digest_mismatches);
            options.context.trace("Digest mismatch: reconciling the replicas' data");
            let answered = gathering.answered();
            gathering.withdraw(&answered);
            answered
        };
        let other = OtherSet::of(metadata, &gathering.nodes, table, tablet, options);
        // Boxed, for it is seldom: what reads have with them is small.
        let reconciled = Box::pin(self.reconcile(table, command, answered, other, &mut gathering, options));
        match limit.limit(reconciled).await {
            Ok(Ok((page, goes_on, sources))) => {
                steps::merged(&sources, options);
                Ok(Gathered { page, goes_on, by: by(sources) })
            }
            Ok(Err(Some(error))) => Err(error.into()),
            Ok(Err(None)) => Err(self.too_few(&mut gathering)),
            Err(_) => Err(self.late(&mut gathering).into()),
        }
    }

    fn too_few(&self, gathering: &mut Gathering) -> Attempt {
        if gathering.outdated {
            return Attempt::Outdated;
        }
        let error = gathering.error(false);
        match error {
            CoordinatorError::Timeout { .. } => count(&self.counters.read_timeouts),
            CoordinatorError::Unavailable { .. } => count(&self.counters.unavailable),
            _ => {}
        }
        error.into()
    }

    fn late(&self, gathering: &mut Gathering) -> CoordinatorError {
        count(&self.counters.read_timeouts);
        gathering.invalid = None;
        gathering.error(true)
    }

    /// Asks for rows and digests until the level is reached. Not so: it is out of reach. Replicas that were asked and have not
    /// answered by then are spare ones again: what is reconciled may need them.
    async fn ask_for_page(
        &self,
        table: &Table,
        command: &ReadCommand,
        targets: &[TabletReplica],
        gathering: &mut Gathering,
        options: &RequestOptions,
    ) -> Result<(), ()> {
        let alone = targets.len() == 1;
        let rows = match alone {
            true => Message::new(Request::Read(command.clone())),
            false => Message::new(Request::ReadAndDigest(command.clone())),
        };
        let digest = Message::new(Request::Digest(command.clone()));
        let began = rt::time::now();
        let mut asked: Asked = FuturesUnordered::new();
        let silent = RefCell::new(SmallVec::<[TabletReplica; 4]>::new());
        let ask = |asked: &Asked, replica: TabletReplica, part: Part| {
            silent.borrow_mut().push(replica);
            let message = if part == Part::Rows { rows.clone() } else { digest.clone() };
            let far = self.far.clone();
            let context = options.context.clone();
            asked.push(Box::pin(async move { (replica, part, far.ask(replica, &message, &context).await) }));
        };
        for (at, replica) in targets.iter().enumerate() {
            ask(&asked, *replica, if at == 0 { Part::Rows } else { Part::Digest });
        }
        let mut rows_asked = 1;
        let mut patience = self.far.patience(table).filter(|_| !gathering.spare.is_empty());
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
                if let Some(replica) = gathering.spare.pop_front() {
                    count(&self.counters.speculative_reads);
                    let part = if gathering.rows.is_none() { Part::Rows } else { Part::Digest };
                    steps::asked_as_well(part, replica, options);
                    rows_asked += usize::from(part == Part::Rows);
                    ask(&asked, replica, part);
                }
                continue;
            };
            let Some((replica, part, answer)) = next else { return Err(()) };
            silent.borrow_mut().retain(|other| *other != replica);
            let datacenter = gathering.nodes.datacenter(replica.host);
            match (part, answer) {
                (Part::Rows, Ok(Answer::Page(page))) => {
                    gathering.tally.answered(datacenter);
                    gathering.rows = Some((replica, page, None));
                }
                (Part::Rows, Ok(Answer::Digested(page, digest))) if gathering.rows.is_none() => {
                    gathering.tally.answered(datacenter);
                    gathering.rows = Some((replica, page, Some(digest)));
                }
                (_, Ok(Answer::Digested(mut page, digest))) => {
                    gathering.tally.answered(datacenter);
                    page.body = Bytes::new();
                    gathering.digests.push((replica, page, digest));
                }
                (_, Ok(_)) => {
                    let why = ReplicaError::Storage("a read was answered otherwise".into());
                    gathering.fail(replica, Miss::Refused(why));
                }
                (part, Err(miss)) => {
                    steps::missed(replica, &miss, options);
                    gathering.fail(replica, miss);
                    rows_asked -= usize::from(part == Part::Rows);
                    if let Some(replica) = gathering.next_spare() {
                        let part = if rows_asked == 0 { Part::Rows } else { Part::Digest };
                        steps::asked_instead(part, replica, options);
                        rows_asked += usize::from(part == Part::Rows);
                        ask(&asked, replica, part);
                    } else if rows_asked == 0 && gathering.rows.is_none() {
                        // Enough digests may have come, but nobody is left to give the rows, save those who gave digests.
                        let Some((replica, ..)) = gathering.digests.pop() else { return Err(()) };
                        gathering.tally.withdrawn(gathering.nodes.datacenter(replica.host));
                        steps::asked_instead(Part::Rows, replica, options);
                        rows_asked = 1;
                        ask(&asked, replica, Part::Rows);
                    }
                }
            }
            match gathering.tally.standing() {
                Standing::OutOfReach => return Err(()),
                Standing::Reached if gathering.rows.is_some() => {
                    self.far.note_time(table, began);
                    gathering.spare.extend(silent.into_inner());
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    /// Merges what these replicas have, repairs them, and makes the page: whether more has to be asked for, and who gave the data. None of
    /// them counts before.
    async fn reconcile(
        &self,
        table: &Table,
        command: &ReadCommand,
        mut replicas: SmallVec<[TabletReplica; 3]>,
        other: Option<OtherSet>,
        gathering: &mut Gathering,
        options: &RequestOptions,
    ) -> Result<(Page, bool, SmallVec<[TabletReplica; 3]>), Option<CoordinatorError>> {
        let (merged, sources) = loop {
            let (mut merged, sources) = self.merged(table, command, &replicas, gathering, options).await?;
            let missed = self.repair(&sources, &mut merged, other.as_ref(), gathering, options).await;
            match gathering.tally.standing() {
                Standing::Reached => break (merged, sources),
                Standing::OutOfReach => return Err(None),
                Standing::Open => {}
            }
            // Once more, with others in the place of those that it did not reach.
            let others: Replicas = missed.iter().map_while(|_| gathering.next_spare()).collect();
            if others.is_empty() {
                return Err(None);
            }
            replicas = sources.into_iter().filter(|source| !missed.contains(source)).collect();
            gathering.withdraw(&replicas);
            replicas.extend(others);
        };
        let resumed = command.slice.resume.as_ref().map(|resume| (resume.key.key.clone(), command.resumed_rows));
        let page = reconcile::page_of(&table.schema, &command.output, command.limits, command.now, resumed, &merged);
        let (page, goes_on) =
            page.map_err(|error| Some(CoordinatorError::of(error, gathering.consistency, gathering.tally.required())))?;
        Ok((page, goes_on, sources))
    }

    /// What these replicas have, brought together, and who gave it: others, where some of them fail. None of them counts before.
    async fn merged(
        &self,
        table: &Table,
        command: &ReadCommand,
        replicas: &[TabletReplica],
        gathering: &mut Gathering,
        options: &RequestOptions,
    ) -> Result<(Merged, SmallVec<[TabletReplica; 3]>), Option<CoordinatorError>> {
        let whole = data_command(command);
        let message = Message::new(Request::Fragments(whole));
        let mut asked: Asked = FuturesUnordered::new();
        let ask = |asked: &Asked, replica: TabletReplica| {
            let (far, message, context) = (self.far.clone(), message.clone(), options.context.clone());
            asked.push(Box::pin(async move { (replica, Part::Data, far.ask(replica, &message, &context).await) }));
        };
        replicas.iter().for_each(|replica| ask(&asked, *replica));
        let mut parts: Vec<FragmentPage> = Vec::new();
        let mut sources: SmallVec<[TabletReplica; 3]> = SmallVec::new();
        while let Some((replica, _, answer)) = asked.next().await {
            match answer {
                Ok(Answer::Fragments(part)) => {
                    gathering.tally.answered(gathering.nodes.datacenter(replica.host));
                    parts.push(part);
                    sources.push(replica);
                }
                Ok(_) => {
                    let why = ReplicaError::Storage("a request for data was answered otherwise".into());
                    gathering.fail(replica, Miss::Refused(why));
                }
                Err(miss) => {
                    steps::missed(replica, &miss, options);
                    gathering.fail(replica, miss);
                    if let Some(replica) = gathering.next_spare() {
                        steps::asked_instead(Part::Data, replica, options);
                        ask(&asked, replica);
                    }
                }
            }
        }
        if gathering.tally.standing() != Standing::Reached {
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
