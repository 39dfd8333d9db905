//! Access control. One table says which role each route needs; one check compares it with the role of the caller's
//! token. A route that the table does not list is for administrators only.

use axum::http::{HeaderMap, Method, header};

use super::{
    extract::Caller,
    problem::{Problem, ProblemKind},
};
use crate::config::{AccessToken, Role};

/// The access that a route needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// No token is needed.
    Open,
    /// Any token is sufficient: an authenticated caller may learn that a route does not exist.
    AnyToken,
    Submit,
    /// For workers of certain agents. The handler checks which.
    Work,
    ReadTasks,
    Read,
    Operate,
    Admin,
}

use Access::{Admin, AnyToken, Open, Operate, Read, ReadTasks, Submit, Work};

const TABLE: &[(Method, &str, Access)] = &[
    (Method::GET, "/livez", Open),
    (Method::GET, "/readyz", Open),
    (Method::GET, "/openapi.json", Open),
    (Method::GET, "/docs", Open),
    (Method::GET, "/problems", Open),
    (Method::GET, "/problems/{kind}", Open),
    (Method::GET, "/metrics", Read),
    (Method::POST, "/v1/tasks", Submit),
    (Method::GET, "/v1/tasks", ReadTasks),
    (Method::GET, "/v1/tasks/{id}", ReadTasks),
    (Method::GET, "/v1/tasks/{id}/history", ReadTasks),
    (Method::GET, "/v1/tasks/{id}/events", ReadTasks),
    (Method::GET, "/v1/tasks/{id}/graph", ReadTasks),
    (Method::GET, "/v1/tasks/{id}/undo-plan", ReadTasks),
    (Method::POST, "/v1/tasks/retry", Operate),
    (Method::POST, "/v1/tasks/undo", Operate),
    (Method::POST, "/v1/tasks/cancel", Operate),
    (Method::POST, "/v1/tasks/skip", Operate),
    (Method::POST, "/v1/tasks/rerun", Operate),
    (Method::POST, "/v1/tasks/migrate", Operate),
    (Method::POST, "/v1/tasks/clone", Operate),
    (Method::POST, "/v1/tasks/resolve", Operate),
    (Method::POST, "/v1/tasks/pause", Operate),
    (Method::POST, "/v1/tasks/resume", Operate),
    (Method::GET, "/v1/bulk", Read),
    (Method::GET, "/v1/bulk/{id}", Read),
    (Method::GET, "/v1/bulk/{id}/tasks", Read),
    (Method::POST, "/v1/bulk/{id}/stop", Operate),
    (Method::POST, "/v1/bulk/{id}/resume", Operate),
    // A clone is a submission, made from a task that the caller may read.
    (Method::POST, "/v1/tasks/{id}/clone", Submit),
    (Method::POST, "/v1/tasks/{id}/cancel", Operate),
    (Method::POST, "/v1/tasks/{id}/undo", Operate),
    (Method::POST, "/v1/tasks/{id}/migrate", Operate),
    (Method::POST, "/v1/tasks/{id}/pause", Operate),
    (Method::POST, "/v1/tasks/{id}/resume", Operate),
    (Method::POST, "/v1/tasks/{id}/start", Operate),
    (Method::POST, "/v1/tasks/{id}/retry", Operate),
    (Method::POST, "/v1/tasks/{id}/steps/{name}/retry", Operate),
    (Method::GET, "/v1/tasks/{id}/steps", ReadTasks),
    (Method::GET, "/v1/tasks/{id}/steps/{name}/attempts", Read),
    (
        Method::GET,
        "/v1/tasks/{id}/steps/{name}/attempts/{attempt}",
        Read,
    ),
    // The requests show, as attempts do, addresses and headers that submitters do not see.
    (Method::GET, "/v1/tasks/{id}/diff/{other}", Read),
    (Method::POST, "/v1/tasks/{id}/steps/{name}/skip", Operate),
    (Method::POST, "/v1/tasks/{id}/steps/{name}/resolve", Operate),
    (Method::POST, "/v1/tasks/{id}/steps/{name}/cancel", Operate),
    (Method::POST, "/v1/tasks/{id}/signals/{name}", Submit),
    (Method::POST, "/v1/signals/{workflow}/{key}/{name}", Submit),
    (Method::POST, "/v1/replies", Work),
    // The token in the path is the credential.
    (Method::POST, "/v1/replies/{token}", Open),
    (Method::POST, "/v1/replies/{token}/heartbeat", Open),
    (Method::GET, "/v1/asks", Read),
    // As for replies, the token in the path is the credential of the person.
    (Method::GET, "/v1/asks/{token}", Open),
    (Method::POST, "/v1/asks/{token}", Open),
    (Method::GET, "/v1/overview", Read),
    (Method::GET, "/v1/failures", Read),
    (Method::GET, "/v1/failures/{fingerprint}", Read),
    (Method::GET, "/v1/alerts", Read),
    (Method::POST, "/v1/alerts/{id}/acknowledge", Operate),
    (Method::GET, "/v1/messages", Read),
    (Method::GET, "/v1/messages/{id}", Read),
    (Method::DELETE, "/v1/messages/{id}", Operate),
    (Method::POST, "/v1/messages/{id}/redeliver", Operate),
    (Method::POST, "/v1/messages/redeliver", Operate),
    (Method::POST, "/v1/messages/discard", Operate),
    // The events of tasks are those of their histories. The handler leaves the records of other changes out for submitters.
    (Method::GET, "/v1/events", ReadTasks),
    (Method::GET, "/v1/changes", Read),
    // A reader changes no task. Only the caller that made one and operators move it.
    (Method::GET, "/v1/readers", ReadTasks),
    (Method::GET, "/v1/readers/{name}", ReadTasks),
    (Method::PUT, "/v1/readers/{name}", ReadTasks),
    (Method::DELETE, "/v1/readers/{name}", ReadTasks),
    (Method::GET, "/v1/workflows", Read),
    (Method::GET, "/v1/workflows/{name}", Read),
    (Method::GET, "/v1/workflows/{name}/versions", Read),
    (Method::GET, "/v1/workflows/{name}/versions/{version}", Read),
    (Method::GET, "/v1/workflows/{name}/graph", Read),
    (Method::GET, "/v1/workflows/{name}/usage", Read),
    // A validation stores nothing, and reveals no more than a dry run of a submission.
    (Method::POST, "/v1/workflows/{name}/validate", Submit),
    (Method::PUT, "/v1/workflows/{name}", Admin),
    (Method::POST, "/v1/workflows/{name}/activate", Admin),
    (Method::GET, "/v1/schedules", Read),
    (Method::GET, "/v1/schedules/{name}", Read),
    (Method::GET, "/v1/schedules/{name}/runs", Read),
    (Method::PUT, "/v1/schedules/{name}", Admin),
    (Method::DELETE, "/v1/schedules/{name}", Admin),
    (Method::POST, "/v1/schedules/{name}/trigger", Operate),
    (Method::POST, "/v1/schedules/{name}/backfill", Operate),
    (Method::POST, "/v1/schedules/{name}/pause", Operate),
    (Method::POST, "/v1/schedules/{name}/resume", Operate),
    (Method::GET, "/v1/agents", Read),
    (Method::GET, "/v1/agents/{name}", Read),
    (Method::POST, "/v1/agents/{name}/claim", Work),
    (Method::POST, "/v1/agents/{name}/pause", Operate),
    (Method::POST, "/v1/agents/{name}/resume", Operate),
    (Method::POST, "/v1/agents/{name}/breaker", Operate),
    // A check calls the service under the agent's name, with a request of the caller.
    (Method::POST, "/v1/agents/{name}/check", Admin),
    (Method::PUT, "/v1/agents/{name}", Admin),
    (Method::DELETE, "/v1/agents/{name}", Admin),
    (Method::GET, "/v1/instances", Read),
    // Secrets are hidden in them. The ledger shows their changes to the same role.
    (Method::GET, "/v1/settings", Read),
    (Method::GET, "/v1/hold", Read),
    (Method::POST, "/v1/hold/release", Operate),
];

/// Returns whether the route has a handler for this method.
pub fn is_served(method: &Method, route: &str) -> bool {
    let mut listed = TABLE.iter();
    listed.any(|(listed, path, _)| *path == route && listed == method)
}

/// Returns all methods that the route handles, as `Allow` lists them.
pub fn methods(route: &str) -> String {
    let mut methods = Vec::new();
    for (method, path, _) in TABLE {
        if *path == route {
            methods.push(method.as_str());
            // The router serves HEAD with the handler for GET.
            methods.extend((method == Method::GET).then_some("HEAD"));
        }
    }
    methods.push("OPTIONS");
    methods.join(",")
}

/// Returns the access that a request to a route needs. A request without a route gets 404.
pub fn needed(method: &Method, route: Option<&str>) -> Access {
    let Some(route) = route else {
        return Access::AnyToken;
    };
    // The console asks its visitors itself who they are. What it shows them comes from routes of the table.
    if provost_console::is_page(route) {
        return Open;
    }
    // The response to HEAD is that to GET without its body.
    let method = match *method {
        Method::HEAD => &Method::GET,
        _ => method,
    };
    let listed = TABLE
        .iter()
        .find(|(listed, path, _)| *path == route && listed == method);
    if let Some((_, _, access)) = listed {
        return *access;
    }
    // A route without this method returns 405 to a caller of any role. If the route needs a token, so does this
    // response.
    let mut others = TABLE.iter().filter(|(_, path, _)| *path == route);
    match others.next() {
        None => Admin,
        Some((_, _, Open)) => Open,
        Some(_) => AnyToken,
    }
}

impl Access {
    pub fn allows(self, role: Role) -> bool {
        match self {
            Access::Open | Access::AnyToken => true,
            Access::ReadTasks => role != Role::Work,
            Access::Submit => !matches!(role, Role::Read | Role::Work),
            Access::Work => matches!(role, Role::Work | Role::Admin),
            Access::Read => !matches!(role, Role::Submit | Role::Work),
            Access::Operate => matches!(role, Role::Operate | Role::Admin),
            Access::Admin => role == Role::Admin,
        }
    }

    /// Returns the weakest role that is sufficient, with its name in the configuration.
    pub fn role(self) -> &'static str {
        match self {
            Access::Open => "none",
            Access::AnyToken => "any",
            Access::ReadTasks => "submit or read",
            Access::Work => "work",
            Access::Submit => "submit",
            Access::Read => "read",
            Access::Operate => "operate",
            Access::Admin => "admin",
        }
    }
}

/// Returns the caller, or the reason why the request is refused; `None` if the route needs no authentication.
pub fn admit(
    tokens: &[AccessToken],
    access: Access,
    headers: &HeaderMap,
) -> Result<Option<Caller>, Problem> {
    if access == Access::Open {
        return Ok(None);
    }
    if tokens.is_empty() {
        return Caller::without_token(headers).map(Some);
    }
    must_allow(access, bearer(tokens, headers)?).map(Some)
}

/// Returns the caller, unless the role is not sufficient.
pub fn must_allow(access: Access, caller: Caller) -> Result<Caller, Problem> {
    if access.allows(caller.role) {
        return Ok(caller);
    }
    Err(Problem::new(
        ProblemKind::Forbidden,
        format!(
            "this needs the role {}, or one that includes it: the token {:?} has the role {}",
            access.role(),
            caller.name,
            caller.role.as_str(),
        ),
    )
    .with("needed_role", access.role()))
}

const BEARER: &[u8] = b"bearer ";

fn bearer(tokens: &[AccessToken], headers: &HeaderMap) -> Result<Caller, Problem> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(Problem::new(
            ProblemKind::InvalidQuery,
            "Authorization is given twice: send one, so that a proxy and Provost read the same token",
        ));
    }
    let Some(value) = value else {
        return Err(Problem::new(
            ProblemKind::Unauthenticated,
            "send the token as `Authorization: Bearer <token>`",
        ));
    };
    // Bytes are compared, because a token may have characters that are not ASCII.
    let presented = value.as_bytes().split_at_checked(BEARER.len());
    let presented = presented
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(BEARER))
        .map(|(_, token)| token.trim_ascii_start());
    let Some(presented) = presented else {
        return Err(Problem::new(
            ProblemKind::Unauthenticated,
            "Authorization is not of the form `Bearer <token>`",
        ));
    };
    // All tokens are compared, so that the time taken does not reveal which one matched.
    let met = tokens.iter().fold(None, |met, token| {
        if token.is(presented) {
            Some(token)
        } else {
            met
        }
    });
    met.map(|token| Caller {
        name: token.name.as_str().into(),
        role: token.role,
        agents: token.agents.clone(),
        is_known: true,
        address: None,
    })
    .ok_or_else(|| {
        Problem::new(
            ProblemKind::Unauthenticated,
            "the token is not known: check it for typing errors, or add it to [[tokens]]",
        )
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const SECRET: &str = "0123456789abcdef";

    fn tokens(role: &str) -> Vec<AccessToken> {
        let token = |name: &str, role: &str, secret: &str| {
            let json = serde_json::json!({"name": name, "role": role, "token": secret});
            serde_json::from_value(json).unwrap()
        };
        vec![
            token("other", "admin", "another-long-secret"),
            token("mine", role, SECRET),
        ]
    }

    fn headers(authorization: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, authorization.parse().unwrap())])
    }

    fn ask(role: &str, method: Method, route: &str) -> Result<Option<Caller>, ProblemKind> {
        let bearer = headers(&format!("Bearer {SECRET}"));
        admit(&tokens(role), needed(&method, Some(route)), &bearer)
            .map_err(|problem| problem.kind())
    }

    #[test]
    fn each_role_may_do_what_it_is_for_and_no_more() {
        // Submit, read, operate, admin.
        for (method, route, allowed) in [
            (Method::POST, "/v1/tasks", [true, false, true, true]),
            (Method::GET, "/v1/tasks", [true, true, true, true]),
            (Method::HEAD, "/v1/tasks/{id}", [true, true, true, true]),
            (Method::GET, "/v1/alerts", [false, true, true, true]),
            (Method::GET, "/metrics", [false, true, true, true]),
            (
                Method::POST,
                "/v1/tasks/{id}/cancel",
                [false, false, true, true],
            ),
            (
                Method::POST,
                "/v1/alerts/{id}/acknowledge",
                [false, false, true, true],
            ),
            (
                Method::PUT,
                "/v1/workflows/{name}",
                [false, false, false, true],
            ),
            (
                Method::DELETE,
                "/v1/agents/{name}",
                [false, false, false, true],
            ),
            (
                Method::GET,
                "/v1/not/in/the/table",
                [false, false, false, true],
            ),
        ] {
            for (role, allowed) in ["submit", "read", "operate", "admin"].iter().zip(allowed) {
                let asked = ask(role, method.clone(), route);
                match asked {
                    Ok(caller) => assert_eq!(&*caller.unwrap().name, "mine"),
                    Err(kind) => assert_eq!(kind, ProblemKind::Forbidden),
                }
                assert_eq!(
                    ask(role, method.clone(), route).is_ok(),
                    allowed,
                    "{role} {method} {route}"
                );
            }
        }
    }

    #[test]
    fn a_missing_wrong_or_unknown_token_is_refused() {
        for headers in [
            HeaderMap::new(),
            headers("Bearer 0123456789abcdeF"),
            headers("Bearer"),
            headers("Basic 0123456789abcdef"),
            headers(SECRET),
        ] {
            let refused = admit(&tokens("admin"), Access::AnyToken, &headers).unwrap_err();
            assert_eq!(refused.kind(), ProblemKind::Unauthenticated, "{headers:?}");
        }
    }

    #[test]
    fn a_token_may_have_other_characters_than_those_of_ascii() {
        let secret = "schl\u{fc}ssel-\u{1f511}-0123";
        let written = serde_json::json!([{"name": "mine", "role": "admin", "token": secret}]);
        let tokens: Vec<AccessToken> = serde_json::from_value(written).unwrap();
        let ask = |token: &str| {
            let value = HeaderValue::from_bytes(format!("Bearer {token}").as_bytes());
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.unwrap())]);
            admit(&tokens, Access::AnyToken, &headers).map_err(|problem| problem.kind())
        };
        assert_eq!(&*ask(secret).unwrap().unwrap().name, "mine");
        let other = secret.replace('\u{1f511}', "\u{1f512}");
        assert_eq!(ask(&other), Err(ProblemKind::Unauthenticated));
    }

    #[test]
    fn a_refusal_names_the_role_that_is_needed() {
        let bearer = headers(&format!("bearer {SECRET}"));
        let refused = admit(&tokens("read"), Operate, &bearer).unwrap_err();
        assert_eq!(refused.member("needed_role"), Some(&"operate".into()));
        assert!(refused.detail().contains("\"mine\" has the role read"));
    }

    #[test]
    fn the_console_asks_its_visitors_itself() {
        for route in ["/console", "/console/tasks", "/console/login"] {
            assert_eq!(needed(&Method::POST, Some(route)), Open, "{route}");
        }
        assert_eq!(needed(&Method::GET, Some("/consoles")), Admin);
    }

    #[test]
    fn the_routes_for_probes_and_documentation_ask_nobody() {
        for route in ["/livez", "/readyz", "/openapi.json", "/docs"] {
            let access = needed(&Method::GET, Some(route));
            let admitted = admit(&tokens("read"), access, &HeaderMap::new());
            assert_eq!(admitted.unwrap(), None, "{route}");
        }
    }

    #[test]
    fn without_tokens_everybody_may_do_everything() {
        let access = needed(&Method::DELETE, Some("/v1/agents/{name}"));
        let caller = admit(&[], access, &HeaderMap::new()).unwrap().unwrap();
        assert_eq!((&*caller.name, caller.role), ("anonymous", Role::Admin));
    }

    #[test]
    fn every_operation_stands_in_the_table_and_every_line_of_it_is_an_operation() {
        let documented = crate::api::openapi::operations(&crate::api::openapi());
        for (method, path) in &documented {
            assert!(
                TABLE
                    .iter()
                    .any(|(listed, route, _)| listed == method && route == path),
                "{method} {path} is not in the table"
            );
        }
        for (method, route, _) in TABLE {
            assert!(
                documented
                    .iter()
                    .any(|(listed, path)| listed == method && path == route),
                "{method} {route} is no operation"
            );
        }
    }
}
