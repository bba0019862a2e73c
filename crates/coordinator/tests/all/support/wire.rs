//! A transport between nodes of one process, which can fail.

use super::Fault;
use bytes::Bytes;
use cluster::tablets::TabletReplica;
use coordinator::{SendError, Transport, answer_report};
use futures_util::future::LocalBoxFuture;
use internode::Verb;
use model::id::HostId;
use replica::Replica;
use replica::arrivals::Origin;
use replica::wire::{Response, encode_response};
use rt::Pieces;
use rt::sync::Deadline;
use std::cell::{self, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

#[derive(Default)]
pub struct Wire {
    pub replicas: RefCell<BTreeMap<HostId, Rc<Replica>>>,
    pub faults: RefCell<BTreeMap<HostId, Fault>>,
    /// The number of requests that were sent to each node.
    pub sent: RefCell<BTreeMap<HostId, u64>>,
    /// The number of reports of arrivals.
    pub reports: RefCell<u64>,
    pub under_way: Rc<cell::Cell<usize>>,
}

/// A request that has not been answered yet.
struct UnderWay(Rc<cell::Cell<usize>>);

impl UnderWay {
    fn new(count: &Rc<cell::Cell<usize>>) -> UnderWay {
        count.set(count.get() + 1);
        UnderWay(count.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A node's end of the transport.
pub struct End(pub Rc<Wire>, pub HostId);

impl End {
    fn report(&self, to: TabletReplica, report: &Bytes) -> Result<Bytes, SendError> {
        *self.0.reports.borrow_mut() += 1;
        let replica = self.0.replicas.borrow()[&to.host].clone();
        let from = Origin { host: self.1, shard: 0 };
        match self.0.faults.borrow().contains_key(&to.host) {
            true => Err(SendError::TimedOut),
            false => answer_report(&replica, from, report).map_err(|error| SendError::Refused(error.to_string())),
        }
    }
}

impl Transport for End {
    fn call(
        &self,
        to: TabletReplica,
        verb: Verb,
        request: Bytes,
        deadline: Deadline,
    ) -> LocalBoxFuture<'static, Result<Bytes, SendError>> {
        if verb == Verb::Arrivals {
            return Box::pin(std::future::ready(self.report(to, &request)));
        }
        *self.0.sent.borrow_mut().entry(to.host).or_default() += 1;
        let replica = self.0.replicas.borrow()[&to.host].clone();
        let mut fault = self.0.faults.borrow().get(&to.host).cloned();
        if matches!(fault, Some(Fault::LostConnection)) {
            self.0.faults.borrow_mut().remove(&to.host);
        }
        let under_way = UnderWay::new(&self.0.under_way);
        Box::pin(async move {
            let _under_way = under_way;
            if let Some(Fault::Late(by, then)) = fault {
                rt::time::sleep(by).await;
                fault = then.map(|then| *then);
            }
            let is_spared = fault.as_ref().is_none_or(|fault| fault.spares(&request));
            let served = deadline.limit(replica.serve(request, deadline));
            match fault {
                Some(Fault::Refused) => Err(SendError::Down("connection refused".into())),
                _ if is_spared => served.await.map(Pieces::join).map_err(|_| SendError::TimedOut),
                Some(Fault::Fails(error) | Fault::FailsWrites(error) | Fault::FailsCounter(_, error)) => {
                    Ok(encode_response(&Response::new(Err(error))).join())
                }
                Some(Fault::LostConnection) => Err(SendError::Lost("the connection was lost".into())),
                Some(Fault::LosesConnection) => {
                    drop(served.await);
                    Err(SendError::Lost("the connection was lost".into()))
                }
                fault => {
                    if matches!(fault, Some(Fault::LosesAnswers)) {
                        drop(served.await);
                    }
                    rt::time::sleep(deadline.remaining()).await;
                    Err(SendError::TimedOut)
                }
            }
        })
    }
}
