//! Axum's extractors of the same names, with errors in the format of this interface:
//! `{message, code}`.

use super::refusal::Refusal;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

/// The parameters of the query. Each may be there once.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let taken = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        taken.map(|query| Query(query.0)).map_err(|rejection| Refusal::Bad(rejection.body_text()))
    }
}

/// The variable parts of the path.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let taken = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        taken.map(|path| Path(path.0)).map_err(|rejection| Refusal::Bad(rejection.body_text()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;
    use serde::Deserialize;

    #[derive(Deserialize, Debug)]
    struct Wanted {
        _kn: Option<String>,
    }

    #[test]
    fn a_doubled_parameter_is_refused_in_our_form() {
        rt::block_on(async {
            for query in ["_kn=a&_kn=b", "_kn=a&_kn=a"] {
                let request = Request::builder().uri(format!("/x?{query}")).body(()).expect("a request");
                let (mut parts, ()) = request.into_parts();
                match Query::<Wanted>::from_request_parts(&mut parts, &()).await {
                    Err(Refusal::Bad(why)) => assert!(why.contains("duplicate field"), "{why}"),
                    Err(_) => panic!("{query}: another refusal"),
                    Ok(Query(wanted)) => panic!("{query}: {wanted:?}"),
                }
            }
        });
    }
}
