//! A round of writing: mutations to all their replicas at once, and what the replicas answer until the level is reached.
//!
//! Each replica gets one request with all that a write has for it, in a task of its own: it goes on when the level is reached or the client
//! has gone. See [`super::carrier`] for what a replica gets that did not take it.

use super::client::Message;
use super::error::Attempt;
use super::miss::Miss;
use super::nodes::Nodes;
use super::tally::{Standing, Tally};
use super::{Consistency, Coordinator, CoordinatorError, RequestOptions, count};
use cluster::metadata::Table;
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::Replicas;
use model::id::HostId;
use replica::{Mutations, Request};
use rt::sync::Notify;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;

/// Mutations that go to the same replicas.
pub(super) struct Part {
    pub replicas: Replicas,
    /// How many of them are only being made.
    pub pending: usize,
    pub table: Rc<Table>,
    pub mutations: Mutations,
    pub tally: Tally,
}

/// Which parts of a write a replica has.
pub(super) type Share = SmallVec<[usize; 1]>;

/// A write on its way, shared by the tasks that carry it.
pub(super) struct Round {
    pub parts: RefCell<Vec<Part>>,
    /// Why replicas answered that they failed, and where they are.
    pub failures: RefCell<Vec<(Option<IpAddr>, String)>>,
    /// Why a replica refused the write itself, if one did.
    pub refused: RefCell<Option<String>>,
    /// Replicas that have not been heard of yet.
    pub outstanding: Cell<usize>,
    /// A replica got the write, or may have.
    pub was_sent: Cell<bool>,
    pub changed: Notify,
    pub nodes: Rc<Nodes>,
    pub consistency: Consistency,
    /// Somebody waits for what becomes of it.
    pub is_open: Cell<bool>,
    /// A replica refused it, meanwhile, as routed by outdated metadata.
    pub outdated: Cell<bool>,
    /// Replicas that will not have the write, and that nothing brings it yet.
    pub lacking: RefCell<Vec<Lacking>>,
}

/// A replica that did not take its part of a write.
pub(super) struct Lacking {
    pub host: HostId,
    pub message: Rc<Message>,
    pub miss: Miss,
}

/// What became of a round.
enum Decided {
    Reached,
    OutOfReach,
    Outdated,
}

impl Round {
    pub fn change(
        &self,
        replica: TabletReplica,
        parts: &[usize],
        change: impl Fn(&mut Tally, super::tally::DatacenterId),
    ) {
        let datacenter = self.nodes.datacenter(replica.host);
        let mut all = self.parts.borrow_mut();
        parts.iter().for_each(|part| change(&mut all[*part].tally, datacenter));
        drop(all);
        self.changed.notify_one();
    }

    pub fn standing(&self) -> Standing {
        let parts = self.parts.borrow();
        let mut standing = Standing::Reached;
        for part in parts.iter() {
            match part.tally.standing() {
                Standing::OutOfReach => return Standing::OutOfReach,
                Standing::Open => standing = Standing::Open,
                Standing::Reached => {}
            }
        }
        standing
    }

    async fn decided(&self) -> Decided {
        loop {
            match self.standing() {
                Standing::Reached => return Decided::Reached,
                _ if self.outdated.get() => return Decided::Outdated,
                // Where replicas are merely unreachable, the error says how many of the others
                // answered.
                Standing::OutOfReach if !self.failures.borrow().is_empty() || self.outstanding.get() == 0 => {
                    return Decided::OutOfReach;
                }
                Standing::Open | Standing::OutOfReach => self.changed.notified().await,
            }
        }
    }

    /// Notes that a replica refused it as routed by outdated metadata. False if nobody waits any more who could do it again.
    pub fn is_outdated(&self) -> bool {
        self.outdated.set(true);
        self.changed.notify_one();
        self.is_open.get()
    }

    /// Notes that a replica was heard of, or will not be.
    pub fn is_heard(&self) {
        self.outstanding.set(self.outstanding.get() - 1);
        self.changed.notify_one();
    }

    /// The part that is furthest from its level, for errors.
    fn worst(&self) -> (u32, u32, u32) {
        let parts = self.parts.borrow();
        let missing = |part: &&Part| part.tally.required() - part.tally.received();
        let worst = parts.iter().max_by_key(missing);
        worst.map_or((0, 0, 0), |part| (part.tally.required(), part.tally.received(), part.tally.failures()))
    }
}

impl Coordinator {
    /// Sends parts to their replicas, except to the one that has them, and waits for the level.
    pub(super) async fn send_parts(
        &self,
        parts: Vec<Part>,
        nodes: Rc<Nodes>,
        done: Option<TabletReplica>,
        options: &RequestOptions,
    ) -> Result<(), Attempt> {
        let consistency = options.consistency;
        let mut targets: SmallVec<[(TabletReplica, Share); 4]> = SmallVec::new();
        for (at, part) in parts.iter().enumerate() {
            for replica in &part.replicas {
                match targets.iter_mut().find(|(known, _)| known == replica) {
                    Some((_, parts)) => parts.push(at),
                    None => targets.push((*replica, SmallVec::from_slice(&[at]))),
                }
            }
        }
        let round = Rc::new(Round {
            parts: RefCell::new(parts),
            failures: RefCell::default(),
            refused: RefCell::default(),
            outstanding: Cell::new(targets.len()),
            was_sent: Cell::new(done.is_some()),
            changed: Notify::new(),
            nodes,
            consistency,
            is_open: Cell::new(true),
            outdated: Cell::new(false),
            lacking: RefCell::default(),
        });
        // Those who get the same share a message.
        let mut messages: SmallVec<[(Share, Rc<Message>); 1]> = SmallVec::new();
        for (replica, parts) in targets {
            if done == Some(replica) {
                round.is_heard();
                round.change(replica, &parts, Tally::answered);
                continue;
            }
            let message = match messages.iter().find(|(known, _)| *known == parts) {
                Some((_, message)) => message.clone(),
                None => {
                    let message = message_of(&round.parts.borrow(), &parts);
                    messages.push((parts.clone(), message.clone()));
                    message
                }
            };
            let (carrier, round, context) = (self.carrier.clone(), round.clone(), options.context.clone());
            rt::task::spawn(async move { carrier.carry(&round, replica, parts, message, context).await }).detach();
        }
        let decided = options.context.deadline.limit(round.decided()).await;
        round.is_open.set(false);
        let (required, received, failures) = round.worst();
        match decided {
            Ok(Decided::Reached) => Ok(()),
            Ok(Decided::Outdated) => Err(Attempt::Outdated),
            Ok(Decided::OutOfReach) => {
                if let Some(why) = round.refused.take() {
                    return Err(CoordinatorError::Invalid(why).into());
                }
                let failed = round.failures.borrow();
                if failed.is_empty() && !round.was_sent.get() {
                    count(&self.counters.unavailable);
                    return Err(CoordinatorError::Unavailable { consistency, required, alive: 0 }.into());
                }
                if failed.is_empty() {
                    count(&self.counters.write_timeouts);
                    let data_present = false;
                    return Err(CoordinatorError::Timeout { consistency, required, received, data_present }.into());
                }
                let why = failed.first().map_or_else(String::new, |(_, why)| why.clone());
                let nodes = failed.iter().filter_map(|(node, _)| *node).collect();
                let data_present = false;
                let error =
                    CoordinatorError::Failed { consistency, required, received, failures, nodes, data_present, why };
                Err(error.into())
            }
            Err(_) => {
                count(&self.counters.write_timeouts);
                Err(CoordinatorError::Timeout { consistency, required, received, data_present: false }.into())
            }
        }
    }
}

fn message_of(parts: &[Part], wanted: &[usize]) -> Rc<Message> {
    let mutations: Mutations = wanted.iter().flat_map(|part| parts[*part].mutations.iter().cloned()).collect();
    Rc::new(Message::new(Request::Write(mutations)))
}
