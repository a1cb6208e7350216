// One completion by the contract alone: text to ids, ids from the worker, ids to text as they come.
//
//     node generate.mjs 'ROMEO:'

import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { fileURLToPath } from "node:url";

const protos = fileURLToPath(new URL("../../protos", import.meta.url));
const files = ["tandem/tokenizer/v1/tokenizer.proto", "tandem/inference/v1/inference.proto"];
const { tandem } = grpc.loadPackageDefinition(loadSync(files, { includeDirs: [protos], keepCase: true, defaults: true }));

const { TANDEM_TOKENIZER_ADDRESS = "localhost:50051", TANDEM_WORKER_ADDRESS = "localhost:50052" } = process.env;
const plain = grpc.credentials.createInsecure();
const tokenizer = new tandem.tokenizer.v1.TokenizerService(TANDEM_TOKENIZER_ADDRESS, plain);
const worker = new tandem.inference.v1.InferenceService(TANDEM_WORKER_ADDRESS, plain);

const text = process.argv[2] ?? "ROMEO:";
const { encoding, fingerprint } = await new Promise((done, failed) =>
  tokenizer.Encode({ input: { segments: [{ text }] } }, (error, answer) => (error ? failed(error) : done(answer))),
);

const decoding = tokenizer.DecodeStream();
decoding.on("data", (answer) => process.stdout.write(answer.text));
decoding.write({ open: { context_ids: encoding.ids.slice(-8) } });

const answer = worker.Generate({
  prompt_ids: encoding.ids,
  stopping: { max_tokens: 32 },
  expected_tokenizer_fingerprint: fingerprint, // a worker of another vocabulary refuses
});
for await (const { delta } of answer) if (delta) decoding.write({ ids: delta.ids });

decoding.write({ end: true });
decoding.end();
await new Promise((done) => decoding.on("end", done));
process.stdout.write("\n");
tokenizer.close();
worker.close();
