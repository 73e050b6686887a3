-- Requests of wrk, from the arguments after `--`:
--   list FILE PATH SEED [NAME VALUE]     GET, the next line of FILE as the value of Authorization each time
--   create FILE PATH SEED ORDER BODY     POST, BODY with an id for %s; ORDER is `random` or the first of ascending ids
-- After a tab, a line of FILE may have the name of the user, which replaces %u in BODY. Without authentication, FILE is `-`.
-- At the end, one line of JSON with counts and latencies in microseconds.

local threads = 0

function setup(thread)
  thread:set("thread_number", threads)
  threads = threads + 1
end

-- Ids have 15 digits, so that all bodies are of one length: random ones start with 1 to 8, ascending ones with 9.
local function next_random_id()
  return string.format("%d%07d%07d", math.random(1, 8), math.random(0, 9999999), math.random(0, 9999999))
end

local function read_authorizations(file)
  if file == "-" then return { "" }, { "" } end
  local lines, users = {}, {}
  for line in io.lines(file) do
    local value, user = line:match("^([^\t]*)\t?(.*)$")
    lines[#lines + 1] = "Authorization: " .. value .. "\r\n"
    users[#users + 1] = user
  end
  return lines, users
end

function init(args)
  local kind, file, path, seed = args[1], args[2], args[3], tonumber(args[4])
  math.randomseed(seed * 1000 + thread_number)
  local authorizations, users = read_authorizations(file)
  local at = math.random(#authorizations)
  local host = "Host: " .. wrk.host .. ":" .. wrk.port .. "\r\n"
  if kind == "list" then
    local extra = args[5] and (args[5] .. ": " .. args[6] .. "\r\n") or ""
    local requests = {}
    for index, authorization in ipairs(authorizations) do
      requests[index] = "GET " .. path .. " HTTP/1.1\r\n" .. host .. authorization .. extra .. "\r\n"
    end
    request = function()
      at = at % #requests + 1
      return requests[at]
    end
  else
    local order, body = args[5], args[6]
    local before, after = body:match("^(.*)%%s(.*)$")
    local heads = {}
    for index, authorization in ipairs(authorizations) do
      local first = before:gsub("%%u", users[index])
      local fields = "Content-Type: application/json\r\nContent-Length: " .. (#first + 15 + #after) .. "\r\n\r\n"
      heads[index] = "POST " .. path .. " HTTP/1.1\r\n" .. host .. authorization .. fields .. first
    end
    local next_id = next_random_id
    if order ~= "random" then
      -- Threads get ranges of their own.
      local id = tonumber(order) + thread_number * 1e9
      next_id = function()
        id = id + 1
        return string.format("%.0f", id)
      end
    end
    request = function()
      at = at % #heads + 1
      return heads[at] .. next_id() .. after
    end
  end
end

function done(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format('\nresult {"requests":%d,"duration":%d,"failed":%d', summary.requests, summary.duration, failed))
  for _, percent in ipairs({ 50, 75, 90, 99, 99.9 }) do
    io.write(string.format(',"p%s":%d', tostring(percent), latency:percentile(percent)))
  end
  io.write(string.format(',"max":%d}\n', latency.max))
end
