//! `provost init`: the files of a first workflow.

use std::{fs, io, path::PathBuf};

use clap::{Args, builder::ValueHint};

use crate::{
    outcome::{ClientError, Outcome},
    output::{note, write},
};

#[derive(Args, Clone, Debug)]
pub struct InitOptions {
    /// The folder, which is made if it does not exist
    #[arg(value_name = "FOLDER", default_value = ".", value_hint = ValueHint::DirPath)]
    folder: PathBuf,
}

/// The files, with their contents. Tests run the cases.
pub const FILES: [(&str, &str); 4] = [
    ("agents/payments.json", AGENT_PAYMENTS),
    ("agents/shipping.json", AGENT_SHIPPING),
    ("workflows/order.yaml", WORKFLOW),
    ("order.cases.yaml", CASES),
];

const AGENT_PAYMENTS: &str = r#"{
  "endpoints": [{ "url": "http://127.0.0.1:9001" }],
  "max_in_flight": 20
}
"#;

const AGENT_SHIPPING: &str = r#"{
  "endpoints": [{ "url": "http://127.0.0.1:9002" }]
}
"#;

const WORKFLOW: &str = r#"description: Charge an order, then ship it
complete_within: 1h
# If a service refuses a step, everything done so far is undone.
on_permanent: undo
steps:
  - name: charge
    agent: payments
    complete_within: 10s
    request:
      path: /charges
      body: { order: "{{ task.id }}", amount: "{{ input.amount }}" }
    undo:
      # The id is known also if nobody knows whether the charge was made.
      request: { method: DELETE, path: "/charges/of/{{ task.id }}" }
  - name: ship
    after: [charge]
    agent: shipping
    complete_within: 30s
    # After this step nothing is undone any more.
    pivot: true
    request:
      path: /shipments
      body: { order: "{{ task.id }}", charge: "{{ steps.charge.output.id }}" }
"#;

const CASES: &str = r#"input: { amount: 5 }

services:
  charge: { body: { id: ch-1 } }
  ship: { body: { tracking: T-77 } }
  undo charge: { status: 204 }

cases:
  - name: the order is charged and shipped
    expect:
      state: processed
      path: [charge, ship]

  - name: the shop cannot ship, and the money goes back
    services:
      ship: { status: 422, body: { error: no_address } }
    expect:
      state: undone
      undone: [charge]
"#;

pub fn run(options: &InitOptions) -> Result<Outcome, ClientError> {
    let folder = &options.folder;
    if let Some((name, _)) = FILES.iter().find(|(name, _)| folder.join(name).exists()) {
        return Err(ClientError::usage(format!(
            "{} exists: choose another folder",
            folder.join(name).display()
        )));
    }
    for (name, text) in FILES {
        let file = folder.join(name);
        let failed = |error: io::Error| ClientError::unwritable(&file, &error);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        fs::write(&file, text).map_err(failed)?;
        write(format_args!("{}\n", file.display()))?;
    }
    let here = folder.display();
    note(format_args!(
        "\nTry it without any service, and then with a server:\n  provost test {here}/workflows/order.yaml {here}/order.cases.yaml\n  provost serve\n  provost apply {here}\n  provost submit order --key order-1 --input '{{\"amount\": 5}}' --wait"
    ));
    Ok(Outcome::Done)
}
