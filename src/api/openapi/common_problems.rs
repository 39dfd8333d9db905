//! The problems that many operations may return: a response of the document for each, and the operations that it
//! belongs to.

use serde_json::json;
use utoipa::openapi::{ContentBuilder, Ref, Response, ResponseBuilder, path::Operation};

use crate::api::{auth::Access, problem::ProblemKind};

/// The problems that any operation of a kind may return, in addition to those that the operation declares.
pub(super) struct CommonProblem {
    pub name: &'static str,
    pub kind: ProblemKind,
    description: &'static str,
    detail: &'static str,
    /// Returns true if an operation with this path and this access rule may return the problem.
    pub applies: fn(&Operation, &str, Access) -> bool,
}

fn has_body(operation: &Operation) -> bool {
    operation.request_body.is_some()
}

pub(super) const COMMON: [CommonProblem; 11] = [
    CommonProblem {
        name: "BadRequest",
        kind: ProblemKind::InvalidQuery,
        description: "A query parameter or a header is invalid, or the body is not JSON",
        detail: "limit is \"0\", but must be a whole number, 1 to 500",
        applies: |operation, _, access| access != Access::Open || has_body(operation),
    },
    CommonProblem {
        name: "Unauthenticated",
        kind: ProblemKind::Unauthenticated,
        description: "Tokens are configured, and the request has no valid token",
        detail: "send the token as `Authorization: Bearer <token>`",
        applies: |_, _, access| access != Access::Open,
    },
    CommonProblem {
        name: "Forbidden",
        kind: ProblemKind::Forbidden,
        description: "The token's role does not allow this (`forbidden`); or, without tokens, the request comes from a page of another site (`cross-site`)",
        detail: "this needs the role operate, or one that includes it: the token \"ci\" has the role submit",
        applies: |_, _, access| access != Access::Open,
    },
    CommonProblem {
        name: "NotFound",
        kind: ProblemKind::NotFound,
        description: "The resource in the path does not exist",
        detail: "task 0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f does not exist",
        applies: |_, path, _| path.contains('{'),
    },
    CommonProblem {
        name: "RequestTimeout",
        kind: ProblemKind::RequestTimeout,
        description: "The body did not arrive completely in time",
        detail: "only 512 bytes of the body arrived: the limit is 60s in total (listener.body_timeout) and 20s between two parts (listener.stall_timeout)",
        applies: |operation, _, _| has_body(operation),
    },
    CommonProblem {
        name: "BodyTooLarge",
        kind: ProblemKind::BodyTooLarge,
        description: "The body is longer than `limits.max_request`",
        detail: "the body is longer than 1048576 bytes: send less, or raise limits.max_request",
        applies: |operation, _, _| has_body(operation),
    },
    CommonProblem {
        name: "NotJson",
        kind: ProblemKind::NotJson,
        description: "The body was not sent as JSON",
        detail: "Content-Type is missing: send JSON with `Content-Type: application/json`",
        applies: |operation, _, _| has_body(operation),
    },
    CommonProblem {
        name: "Misdirected",
        kind: ProblemKind::Misdirected,
        description: "Without tokens: the request names a host that is neither a loopback name or address nor the host of `public_url`",
        detail: "this service accepts requests for localhost and loopback addresses, not for evil.example: use one of those, set public_url to the URL under which the service is reached, or configure tokens",
        applies: |_, _, _| true,
    },
    CommonProblem {
        name: "Invalid",
        kind: ProblemKind::Invalid,
        description: "The content is invalid; `errors` lists every fault with its JSON pointer",
        detail: "/steps/1/after/0: there is no step \"reserv\"; did you mean \"reserve\"?",
        applies: |operation, _, _| has_body(operation),
    },
    CommonProblem {
        name: "Internal",
        kind: ProblemKind::Internal,
        description: "An internal error; the service's log has the details",
        detail: "an internal error prevented this request; the service's log has the details",
        applies: |_, path, _| path.starts_with("/v1/"),
    },
    CommonProblem {
        name: "Unavailable",
        kind: ProblemKind::StoreUnavailable,
        description: "The store cannot commit (`store-full`, `store-unavailable`) or the service is stopping (`stopping`). Nothing was changed. Retry after `Retry-After`",
        detail: "the disk that holds the database is full, or the database has reached its size limit: free some space; the service then continues automatically",
        applies: |_, path, _| path.starts_with("/v1/"),
    },
];

impl CommonProblem {
    pub fn response(&self) -> Response {
        let content = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name("Problem")))
            .example(Some(json!({
                "type": format!("/problems/{}", self.kind.slug()),
                "title": self.kind.title(),
                "status": self.kind.status().as_u16(),
                "detail": self.detail,
            })))
            .build();
        ResponseBuilder::new()
            .description(self.description)
            .content("application/problem+json", content)
            .build()
    }
}
