//! The handlers of verbs.

use super::config::Verb;
use super::error::{Refusal, RefusalCode};
use bytes::Bytes;
use model::HostId;
use rt::Pieces;
use rt::sync::Deadline;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;

/// The sender of a request, and its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The node.
    pub host: HostId,
    /// Its shard.
    pub shard: u16,
    /// The address that it states for other nodes.
    pub address: SocketAddr,
    /// The deadline of the request. The handler's future is dropped then.
    pub deadline: Deadline,
}

pub(super) type Answering = Pin<Box<dyn Future<Output = Result<Pieces, Refusal>>>>;
type Handler = Rc<dyn Fn(Caller, Bytes) -> Answering>;

/// The handlers of a shard, indexed by the number of the verb.
pub(super) struct Handlers {
    by_verb: RefCell<Vec<Option<Handler>>>,
    pub stopping: Cell<bool>,
}

impl Handlers {
    pub fn new() -> Rc<Handlers> {
        Rc::new(Handlers { by_verb: RefCell::default(), stopping: Cell::new(false) })
    }

    pub fn set<F, Fut>(&self, verb: Verb, handler: F)
    where
        F: Fn(Caller, Bytes) -> Fut + 'static,
        Fut: Future<Output = Result<Pieces, Refusal>> + 'static,
    {
        let handler: Handler = Rc::new(move |caller, body| Box::pin(handler(caller, body)));
        let mut by_verb = self.by_verb.borrow_mut();
        let at = usize::from(verb as u8);
        if by_verb.len() <= at {
            by_verb.resize_with(at + 1, || None);
        }
        let before = by_verb[at].replace(handler);
        drop(by_verb);
        drop(before);
    }

    /// Removes all handlers and drops the values that they own.
    pub fn clear(&self) {
        let before = std::mem::take(&mut *self.by_verb.borrow_mut());
        drop(before);
    }

    /// Starts a request.
    pub fn start(&self, verb: u8, caller: Caller, body: Bytes) -> Result<Answering, Refusal> {
        if self.stopping.get() {
            return Err(Refusal::new(RefusalCode::Stopping, "the node is stopping"));
        }
        let handler = self.by_verb.borrow().get(usize::from(verb)).cloned().flatten();
        match handler {
            Some(handler) => Ok(handler(caller, body)),
            None => Err(Refusal::new(RefusalCode::UnknownVerb, format!("verb {verb} has no handler here"))),
        }
    }
}
