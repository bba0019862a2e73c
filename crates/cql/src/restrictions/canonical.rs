//! The canonical form of restrictions, to which paging states are bound.
//!
//! Two requests have the same form exactly if they select the same rows. A literal and an equal
//! bound value are the same, `IN` is a set, and relations that must all hold have no order. A
//! function call is represented by its name and arguments, never by its result: `now()` returns
//! another value on the second page, but is the same restriction. A large list of `IN` is
//! represented by its hash.
//!
//! The form is hashed, never stored or parsed. A change of the form invalidates the paging states
//! of running queries, so [`FORM`] must be changed with it.

use super::clustering::Tuple;
use super::filter::Test;
use super::{Clustering, Filter, InList, Op, Ops, Partition, Restrictions};
use crate::checked::SortedSet;
use crate::error::Error;
use crate::syntax::ast::CompareOp;
use crate::term::{Env, Term, Val};
use model::types::collection;
use replica::OutputColumn;

/// The version of the form.
const FORM: u8 = 1;

/// An encoding under construction. Every piece begins with a letter, and every length is encoded,
/// so that two different forms never have the same bytes.
#[derive(Default)]
struct Form(Vec<u8>);

impl Form {
    fn letter(&mut self, letter: u8) {
        self.0.push(letter);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    fn number(&mut self, number: usize) {
        self.0.extend_from_slice(&(number as u64).to_le_bytes());
    }

    /// Adds pieces whose order and multiplicity do not matter.
    fn set(&mut self, mut pieces: Vec<Form>) {
        pieces.sort_by(|a, b| a.0.cmp(&b.0));
        pieces.dedup_by(|a, b| a.0 == b.0);
        self.number(pieces.len());
        pieces.iter().for_each(|piece| self.bytes(&piece.0));
    }

    fn value(&mut self, value: Option<&[u8]>) {
        match value {
            Some(bytes) => {
                self.letter(b'v');
                self.bytes(bytes);
            }
            None => self.letter(b'n'),
        }
    }

    fn terms(&mut self, letter: u8, terms: &[Term], env: Env<'_>) -> Result<(), Error> {
        self.letter(letter);
        self.number(terms.len());
        terms.iter().try_for_each(|term| self.term(term, env))
    }

    fn term(&mut self, term: &Term, env: Env<'_>) -> Result<(), Error> {
        match term {
            Term::Folded(folded) => return self.term(&folded.1, env),
            Term::Call(function, arguments) => {
                self.letter(b'c');
                self.bytes(function.signature().as_bytes());
                return self.terms(b'a', arguments, env);
            }
            term if !term.has_call() => match term.evaluate(env)? {
                Val::Unset => self.letter(b'u'),
                value => self.value(value.as_slice()),
            },
            Term::List(terms) => return self.terms(b'l', terms, env),
            Term::Set(_, terms) => return self.terms(b's', terms, env),
            Term::Vector(_, terms) => return self.terms(b'e', terms, env),
            Term::Tuple(terms) => return self.terms(b't', terms, env),
            Term::Map(_, pairs) => {
                self.letter(b'm');
                self.number(pairs.len());
                for (key, value) in pairs {
                    self.term(key, env)?;
                    self.term(value, env)?;
                }
            }
            Term::TupleField(tuple, field) => {
                self.letter(b'f');
                self.number(*field);
                return self.term(tuple, env);
            }
            Term::Null | Term::Constant(_) | Term::Variable(_) => unreachable!("they call nothing"),
        }
        Ok(())
    }

    /// Adds a large list that was sorted off the shard, by its hash.
    fn checked_set(&mut self, (set, nulls): (&SortedSet, bool)) {
        self.letter(if nulls { b'J' } else { b'I' });
        self.bytes(set.digest());
    }

    fn in_list(&mut self, list: &InList, env: Env<'_>) -> Result<(), Error> {
        if let Some(checked) = list.checked(env) {
            self.checked_set(checked);
            return Ok(());
        }
        let mut pieces = Vec::new();
        match list {
            InList::Terms(terms) => {
                for term in terms {
                    let mut piece = Form::default();
                    piece.term(term, env)?;
                    pieces.push(piece);
                }
            }
            InList::List(_) | InList::Set(_) => {
                let (values, nulls) = list.values(env)?;
                let values = values.iter().map(|value| Some(&value[..])).chain(nulls.then_some(None));
                pieces.extend(values.map(|value| {
                    let mut piece = Form::default();
                    piece.value(value);
                    piece
                }));
            }
        }
        self.letter(b'i');
        self.set(pieces);
        Ok(())
    }

    fn op(&mut self, op: &Op, env: Env<'_>) -> Result<(), Error> {
        let (letter, inclusive, term) = match op {
            Op::Eq(term) => (b'=', false, term),
            Op::Lower(term, inclusive) => (b'>', *inclusive, term),
            Op::Upper(term, inclusive) => (b'<', *inclusive, term),
            Op::In(list) => return self.in_list(list, env),
        };
        self.letter(letter);
        self.letter(u8::from(inclusive));
        self.term(term, env)
    }

    /// Adds a set of one piece without a copy. This is the common case.
    fn one(&mut self, write: impl FnOnce(&mut Form) -> Result<(), Error>) -> Result<(), Error> {
        self.number(1);
        self.number(0);
        let start = self.0.len();
        write(self)?;
        let len = (self.0.len() - start) as u64;
        self.0[start - 8..start].copy_from_slice(&len.to_le_bytes());
        Ok(())
    }

    fn ops(&mut self, ops: &[Op], env: Env<'_>) -> Result<(), Error> {
        if let [op] = ops {
            return self.one(|form| form.op(op, env));
        }
        let mut pieces = Vec::with_capacity(ops.len());
        for op in ops {
            let mut piece = Form::default();
            piece.op(op, env)?;
            pieces.push(piece);
        }
        self.set(pieces);
        Ok(())
    }

    fn columns(&mut self, columns: &[Ops], env: Env<'_>) -> Result<(), Error> {
        self.number(columns.len());
        columns.iter().try_for_each(|ops| self.ops(ops, env))
    }

    fn tuple(&mut self, tuple: &Tuple, env: Env<'_>) -> Result<(), Error> {
        match tuple {
            Tuple::Eq(terms) => self.terms(b'=', terms, env),
            Tuple::Lower(terms, inclusive) => {
                self.letter(u8::from(*inclusive));
                self.terms(b'>', terms, env)
            }
            Tuple::Upper(terms, inclusive) => {
                self.letter(u8::from(*inclusive));
                self.terms(b'<', terms, env)
            }
            Tuple::In(tuples) => {
                let mut pieces = Vec::with_capacity(tuples.len());
                for terms in tuples {
                    let mut piece = Form::default();
                    piece.terms(b't', terms, env)?;
                    pieces.push(piece);
                }
                self.letter(b'i');
                self.set(pieces);
                Ok(())
            }
            Tuple::InList(term, _) if let Some(checked) = term.checked_set(env) => {
                self.checked_set(checked);
                Ok(())
            }
            Tuple::InList(term, count) => {
                let wrong = |error: model::types::ValueError| Error::invalid(error.to_string());
                let mut pieces = Vec::new();
                if let Some((list, nulls)) = term.evaluate_in_list(env)? {
                    pieces.extend(nulls.then(|| {
                        let mut piece = Form::default();
                        piece.value(None);
                        piece
                    }));
                    for tuple in collection::elements(&list).map_err(wrong)? {
                        let mut piece = Form::default();
                        piece.letter(b't');
                        piece.number(*count);
                        for field in collection::fields(tuple.map_err(wrong)?) {
                            piece.value(field.map_err(wrong)?);
                        }
                        pieces.push(piece);
                    }
                }
                self.letter(b'i');
                self.set(pieces);
                Ok(())
            }
        }
    }

    fn partition(&mut self, partition: &Partition, env: Env<'_>) -> Result<(), Error> {
        match partition {
            Partition::All => self.letter(b'A'),
            Partition::Keys(columns) => {
                self.letter(b'K');
                self.columns(columns, env)?;
            }
            Partition::Token(ops) => {
                self.letter(b'T');
                self.ops(ops, env)?;
            }
        }
        Ok(())
    }

    fn clustering(&mut self, clustering: &Clustering, env: Env<'_>) -> Result<(), Error> {
        match clustering {
            Clustering::All => self.letter(b'A'),
            Clustering::Columns { prefix, slice } => {
                self.letter(b'C');
                self.columns(prefix, env)?;
                self.ops(slice, env)?;
            }
            Clustering::Tuples(tuples) => {
                self.letter(b'T');
                let mut pieces = Vec::with_capacity(tuples.len());
                for tuple in tuples {
                    let mut piece = Form::default();
                    piece.tuple(tuple, env)?;
                    pieces.push(piece);
                }
                self.set(pieces);
            }
        }
        Ok(())
    }

    fn filter(&mut self, filter: &Filter, env: Env<'_>) -> Result<(), Error> {
        let (kind, number) = match filter.column {
            OutputColumn::PartitionKey(i) => (b'p', i),
            OutputColumn::Clustering(i) => (b'c', i),
            OutputColumn::Value(id) => (b'v', id.0),
            OutputColumn::WriteTime(id) => (b'w', id.0),
            OutputColumn::Ttl(id) => (b't', id.0),
            OutputColumn::Elements(id) => (b'e', id.0),
            OutputColumn::CellTimes(id) => (b'm', id.0),
        };
        self.letter(kind);
        self.number(number.into());
        match &filter.test {
            Test::Compare(op, term) => {
                self.letter(letter_of(*op));
                self.term(term, env)
            }
            Test::In(list, negated) => {
                self.letter(if *negated { b'o' } else { b'i' });
                self.in_list(list, env)
            }
            Test::Contains(term) => {
                self.letter(b'h');
                self.term(term, env)
            }
            Test::ContainsKey(term) => {
                self.letter(b'k');
                self.term(term, env)
            }
            Test::Element(key, op, term) => {
                self.letter(b'x');
                self.letter(letter_of(*op));
                self.term(key, env)?;
                self.term(term, env)
            }
            Test::Tuple(tuple, negated) => {
                self.letter(if *negated { b'U' } else { b'u' });
                self.number(filter.rest.len());
                self.tuple(tuple, env)
            }
        }
    }
}

fn letter_of(op: CompareOp) -> u8 {
    match op {
        CompareOp::Eq => b'=',
        CompareOp::Ne => b'!',
        CompareOp::Lt => b'<',
        CompareOp::Le => b'[',
        CompareOp::Gt => b'>',
        CompareOp::Ge => b']',
        CompareOp::Like => b'~',
    }
}

impl Restrictions {
    /// The canonical form for these values.
    pub fn canonical(&self, env: Env<'_>) -> Result<Vec<u8>, Error> {
        let mut form = Form(Vec::with_capacity(192));
        form.letter(FORM);
        form.partition(&self.partition, env)?;
        form.clustering(&self.clustering, env)?;
        let mut filters = Vec::with_capacity(self.filters.len());
        for filter in &self.filters {
            let mut piece = Form::default();
            piece.filter(filter, env)?;
            filters.push(piece);
        }
        form.set(filters);
        Ok(form.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{BoundValue, ColumnSpec};
    use bytes::Bytes;
    use model::CqlType;
    use smallvec::smallvec;

    fn bytes(n: i32) -> Bytes {
        Bytes::copy_from_slice(&n.to_be_bytes())
    }

    fn restrictions(key: Term, lower: Term) -> Restrictions {
        let slice = Box::new([Op::Lower(lower, false)]);
        Restrictions {
            partition: Partition::Keys(Box::new([smallvec![Op::Eq(key)]])),
            clustering: Clustering::Columns { prefix: Box::default(), slice },
            filters: Box::default(),
        }
    }

    fn variables() -> [ColumnSpec; 2] {
        [0, 1].map(|n| ColumnSpec { keyspace: "k".into(), table: "t".into(), name: format!("v{n}"), ty: CqlType::Int })
    }

    #[test]
    fn a_set_of_one_is_a_set() {
        let (mut one, mut set, mut piece) = (Form::default(), Form::default(), Form::default());
        piece.bytes(b"piece");
        set.set(vec![piece]);
        one.one(|form| {
            form.bytes(b"piece");
            Ok(())
        })
        .expect("nothing can fail");
        assert_eq!(one.0, set.0);
    }

    #[test]
    fn values_count_and_not_how_they_are_written() {
        let (values, variables) = ([BoundValue::Value(bytes(1)), BoundValue::Value(bytes(2))], variables());
        let env = Env { values: &values, variables: &variables };
        let form = |key, lower| restrictions(key, lower).canonical(env).expect("it can be evaluated");
        let literal = form(Term::Constant(bytes(1)), Term::Constant(bytes(2)));
        assert_eq!(form(Term::Variable(0), Term::Variable(1)), literal);
        assert_ne!(form(Term::Variable(1), Term::Variable(0)), literal);
        assert_ne!(form(Term::Variable(0), Term::Null), literal);
    }
}
