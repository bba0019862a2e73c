//! Serving a request: in its wire form, or as it is for who is on this shard.

use super::{Answer, Header, Pieces, Request, Response, decode_request, encode_response};
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
    pub async fn serve(&self, request: Bytes) -> Pieces {
        let response = match decode_request(request) {
            Ok((header, request)) => self.answer(header, request).await,
            Err(error) => Response::new(Err(ReplicaError::Rejected(error.to_string()))),
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
            large_data: header.checks_large_data.then(Rc::default),
        };
        let work = self.perform(&request, &context);
        let result = context.deadline.limit(work).await.unwrap_or(Err(ReplicaError::Timeout));
        let events = context.trace.as_ref().map(|trace| trace.take_events()).unwrap_or_default();
        let large_data = context.large_data.map(|found| found.get()).unwrap_or_default();
        Response { result, events, large_data }
    }

    /// Does what a request asks for, unless it was routed by metadata below the fence, or by such as do not know of a TRUNCATE of its table.
    /// What is read is given out only if that still holds: the data may have left while they were read.
    pub async fn perform(&self, request: &Request, context: &Context) -> Result<Answer, ReplicaError> {
        self.check_fence(context, || request.tables())?;
        let answer = self.carry_out(request, context).await?;
        match answer {
            Answer::Page(_) | Answer::Digested(..) | Answer::Fragments(_) => {
                self.check_fence(context, || request.tables())?;
            }
            Answer::Written | Answer::Counted(_) => {}
        }
        Ok(answer)
    }

    async fn carry_out(&self, request: &Request, context: &Context) -> Result<Answer, ReplicaError> {
        let keyed = |mutation: &Mutation| {
            let key: DecoratedKey = mutation.decorated_key();
            (mutation.clone(), key)
        };
        match request {
            Request::Read(command) => self.read(command, context).await.map(Answer::Page),
            Request::Write(mutation) => {
                let key = mutation.decorated_key();
                self.write(mutation, &key, context).await.map(|()| Answer::Written)
            }
            Request::WriteGroup(mutations) => {
                let mutations: Vec<_> = mutations.iter().map(keyed).collect();
                self.write_group(&mutations, context).await.map(|()| Answer::Written)
            }
            Request::Count(mutation) => {
                let key = mutation.decorated_key();
                self.count(mutation, &key, context).await.map(Answer::Counted)
            }
            Request::Digest(command) => {
                let (mut page, digest) = self.read_digested(command, context).await?;
                page.body = Bytes::new();
                Ok(Answer::Digested(page, digest))
            }
            Request::ReadAndDigest(command) => {
                let (page, digest) = self.read_digested(command, context).await?;
                Ok(Answer::Digested(page, digest))
            }
            Request::Fragments(command) => self.read_fragments(command, context).await.map(Answer::Fragments),
        }
    }
}
