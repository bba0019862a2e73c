//! Serving a request that came in its wire form.

use super::{Answer, Header, Request, Response, decode_request, encode_response};
use crate::error::ReplicaError;
use crate::read::Replica;
use crate::request::Context;
use crate::trace::Trace;
use bytes::Bytes;
use model::key::DecoratedKey;
use model::mutation::Mutation;
use rt::sync::{Cancel, Deadline};
use rt::time::Duration;
use std::rc::Rc;

impl Replica {
    /// Answers a request from another shard or node. Dropping the future stops the work at its next yield.
    pub async fn serve(&self, request: Bytes) -> Bytes {
        let response = match decode_request(request) {
            Ok((header, request)) => self.answer(header, request).await,
            Err(error) => Response { result: Err(ReplicaError::Rejected(error.to_string())), events: Vec::new() },
        };
        encode_response(&response)
    }

    async fn answer(&self, header: Header, request: Request) -> Response {
        let context = Context {
            class: header.class,
            deadline: Deadline::after(Duration::from_micros(header.time_left_micros)),
            cancel: Cancel::new(),
            trace: header.trace.map(|id| Rc::new(Trace::new(id))),
            metadata_number: header.metadata_number,
        };
        let keyed = |mutation: Mutation| {
            let key: DecoratedKey = mutation.decorated_key();
            (mutation, key)
        };
        let work = async {
            match request {
                Request::Read(command) => self.read(&command, &context).await.map(Answer::Page),
                Request::Write(mutation) => {
                    let (mutation, key) = keyed(mutation);
                    self.write(&mutation, &key, &context).await.map(|()| Answer::Written)
                }
                Request::WriteGroup(mutations) => {
                    let mutations: Vec<_> = mutations.into_iter().map(keyed).collect();
                    self.write_group(&mutations, &context).await.map(|()| Answer::Written)
                }
            }
        };
        let result = context.deadline.limit(work).await.unwrap_or(Err(ReplicaError::Timeout));
        let events = context.trace.as_ref().map(|trace| trace.take_events()).unwrap_or_default();
        Response { result, events }
    }
}
