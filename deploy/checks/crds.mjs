// Check custom resources against the schemas of their definitions: node crds.mjs MODULES < documents.json
//
// MODULES holds node_modules with @kubernetes-models; standard input is a JSON list of documents. Prints one line per
// problem. The validators let unknown fields pass, so each field is also given a value that no schema allows: a field
// about which they then say nothing is one that they do not know.
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const FOLDERS = {
  "monitoring.coreos.com/v1": ["prometheus-operator", "ComGithubPrometheusOperatorPrometheusOperatorPkgApisMonitoringV1"],
  "keda.sh/v1alpha1": ["keda", "ComGithubKedacoreKedaV2ApisKedaV1alpha1"],
};

async function validatorOf(modules, { apiVersion, kind }) {
  const found = FOLDERS[apiVersion];
  if (!found) throw new Error(`no schema for ${apiVersion} ${kind}`);
  const file = join(resolve(modules), "node_modules/@kubernetes-models", found[0], "_schemas", `${found[1]}${kind}.js`);
  return (await import(pathToFileURL(file).href)).validate;
}

function* fields(value, path = []) {
  if (value === null || typeof value !== "object") return;
  for (const [key, inner] of Object.entries(value)) {
    yield [...path, key];
    yield* fields(inner, [...path, key]);
  }
}

function changed(document, path) {
  const copy = structuredClone(document);
  const last = path.at(-1);
  path.slice(0, -1).reduce((value, key) => value[key], copy)[last] = () => {};
  return copy;
}

const documents = JSON.parse(readFileSync(0, "utf8"));
for (const document of documents) {
  const name = `${document.kind} ${document.metadata?.name}`;
  const validate = await validatorOf(process.argv[2], document);
  if (!validate(document)) {
    for (const error of validate.errors) {
      console.log(`${name}: ${error.instancePath || "/"}: ${error.keyword} ${JSON.stringify(error.params)}`);
    }
    continue;
  }
  for (const path of fields(document)) {
    if (validate(changed(document, path))) console.log(`${name}: /${path.join("/")}: unknown field`);
  }
}
