// The official TypeScript SDKs against a server whose sandboxes know a few words. What differs from the expectation throws.
//
// usage: node typescript.mjs v1|v2 http URL
//        node typescript.mjs v1|v2 stdio COMMAND ARGUMENT...
import assert from 'node:assert/strict';

const [generation, kind, target, ...rest] = process.argv.slice(2);

async function sdk() {
  if (generation === 'v2') {
    const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
    const { StdioClientTransport } = await import('@modelcontextprotocol/client/stdio');
    return { Client, StreamableHTTPClientTransport, StdioClientTransport };
  }
  const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
  const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
  const { StdioClientTransport } = await import('@modelcontextprotocol/sdk/client/stdio.js');
  return { Client, StreamableHTTPClientTransport, StdioClientTransport };
}

const { Client, StreamableHTTPClientTransport, StdioClientTransport } = await sdk();
const client = new Client({ name: 'conformity', version: '1' });
const session = `ts-${generation}-${kind}`;
const transport =
  kind === 'http'
    ? new StreamableHTTPClientTransport(new URL(target), { requestInit: { headers: { 'X-Session-ID': session } } })
    : new StdioClientTransport({ command: target, args: [...rest, `--session-id=${session}`] });
await client.connect(transport);

// The two generations differ in where a call's options stand.
const bash = (args, options) =>
  generation === 'v2'
    ? client.callTool({ name: 'bash', arguments: args }, options)
    : client.callTool({ name: 'bash', arguments: args }, undefined, options);

const { tools } = await client.listTools();
assert.deepEqual(tools.map((tool) => tool.name), ['bash']);
assert.ok(tools[0].outputSchema && tools[0].annotations);

const hello = await bash({ command: 'echo hello' });
assert.equal(hello.structuredContent.stdout, 'hello\n');
assert.equal(hello.structuredContent.exit_code, 0);
assert.deepEqual(JSON.parse(hello.content[0].text), hello.structuredContent);
assert.ok(!hello.isError);

const failed = await bash({ command: 'exit 3' });
assert.equal(failed.isError, true);
assert.equal(failed.structuredContent.exit_code, 3);

const refused = await bash({ command: 'echo', timeout: 301 });
assert.equal(refused.isError, true);
assert.match(refused.content[0].text, /1 to 300/);

let output = '';
await bash({ command: 'stream' }, { onprogress: (progress) => (output += progress.message) });
assert.equal(output, 'one\ntwo\nthree\n');

const abort = new AbortController();
const hanging = bash({ command: 'hang' }, { signal: abort.signal });
setTimeout(() => abort.abort('enough'), 500);
await assert.rejects(hanging);
for (;;) {
  const stopped = await bash({ command: 'stopped' });
  if (stopped.structuredContent.stdout.includes('hang')) break;
}

await client.close();
console.log('ok');
